-- Grant an agent to a host that is about to start it. Repeating the call with the same seen fence changes nothing.
-- KEYS  as in agents
-- ARGV  1 host, 2 address, 3 ttl ms, 4 id, 5 the fence that the caller read, or ''
-- returns { granted | mine | held | stale | unwanted | unknown, fence, address }
-- @include agents
local host, address, ttl, id, seen = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local record, now = record_prefix .. id, now_ms()

local have = redis.call('HMGET', record, 'wanted', 'owner', 'fence', 'address')
if not have[3] then return { 'unknown', '0', '' } end
if have[1] ~= '1' then return { 'unwanted', have[3], '' } end -- guard: grant-wanted-only
local owner, fence = have[2] or '', tonumber(have[3])
-- The address too: another process of the same name is another host.
local again = owner == host and have[4] == address and (seen == '' or fence == tonumber(seen) + 1) -- guard: grant-repeat-same-host
local live = owner ~= '' and tonumber(redis.call('ZSCORE', leases, id) or 0) > now
if again and live then -- guard: grant-repeat-accepted
  redis.call('ZADD', leases, now + ttl, id)
  return { 'mine', have[3], have[4] }
end
if live then return { 'held', have[3], have[4] } end -- guard: grant-not-while-held
if seen ~= '' and fence ~= tonumber(seen) then return { 'stale', have[3], have[4] or '' } end -- guard: grant-seen-fence

leave_host(id, owner) -- guard: grant-leaves-old-host
fence = redis.call('HINCRBY', record, 'fence', 1) -- guard: grant-raises-fence
redis.call('HSET', record, 'owner', host, 'address', address, 'status', 'starting')
redis.call('ZADD', leases, now + ttl, id)
return { 'granted', tostring(fence), address }
