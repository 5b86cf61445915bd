-- Renew a registered agent; for an agent of our own hosts, which renew it themselves, only return whether it has a location.
-- KEYS  as in agents
-- ARGV  1 id, 2 ttl ms, 3 ms for which its record stays
-- returns 1 | 0: it has no location any more
-- @include agents
local id, ttl, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local record = record_prefix .. id

if redis.call('EXISTS', location_prefix .. id) == 0 then return 0 end
local entry = redis.call('HGET', record, 'entry')
if entry and entry ~= '' then return 1 end
redis.call('PEXPIRE', location_prefix .. id, ttl)
if entry then
  redis.call('PEXPIRE', record, ttl + keep)
  redis.call('ZADD', leases, now_ms() + ttl, id)
end
return 1
