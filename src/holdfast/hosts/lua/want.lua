-- Record that an agent should run. The caller has the placing time to find a host for it; then other hosts try.
-- KEYS  as in agents
-- ARGV  1 id, 2 ms for placing it, then field, value, ...
-- returns { new | known, fence, status, address }: known if it is wanted already and has not crashed, or if its host is
-- about to stop it (status stopping): until that has ended it would run twice
-- @include agents
local id, placing = ARGV[1], tonumber(ARGV[2])
local record, now = record_prefix .. id, now_ms()

local have = redis.call('HMGET', record, 'wanted', 'status', 'fence', 'address', 'owner')
if have[1] == '1' and have[2] ~= 'crashed' then return { 'known', have[3], have[2], have[4] } end -- guard: want-known-agent
if (have[5] or '') ~= '' and tonumber(redis.call('ZSCORE', leases, id) or 0) > now then -- guard: want-stopping-agent
  return { 'known', have[3], 'stopping', have[4] }
end

redis.call('PERSIST', record) -- guard: want-persists-record
redis.call('HDEL', record, 'error', 'pid', 'started_at', 'restarts')
redis.call('HSET', record, 'fence', have[3] or '0', 'wanted', '1', 'status', 'placing', 'owner', '', 'address', '',
  'created_at', now, unpack(ARGV, 3))
redis.call('ZADD', index, now, id)
redis.call('ZADD', leases, now + placing, id)
return { 'new', redis.call('HGET', record, 'fence'), 'placing', '' }
