-- Register the location of an agent that runs outside of our hosts. A repeated call moves it to the new location; an agent
-- that one of our own hosts runs, or is about to run, is not changed.
-- KEYS  as in agents
-- ARGV  1 host, 2 address, 3 ttl ms, 4 id, 5 ms for which its record stays
-- returns { registered | held, its address }
-- @include agents
local host, address, ttl, id, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local record, now = record_prefix .. id, now_ms()

local have = redis.call('HMGET', record, 'wanted', 'entry', 'owner', 'address')
local owner = have[3] or ''
if (have[2] or '') ~= '' and (have[1] == '1' or owner ~= '') then -- guard: registration-keeps-hosted
  return { have[4] == address and 'registered' or 'held', have[4] or '' }
end
leave_host(id, owner)
redis.call('HINCRBY', record, 'fence', 1)
redis.call('HSET', record, 'wanted', '1', 'bound', '1', 'entry', '', 'payload', '', 'status', 'running', 'owner', host,
  'address', address, 'created_at', now, 'started_at', now)
redis.call('PEXPIRE', record, ttl + keep)
redis.call('ZADD', leases, now + ttl, id) -- guard: registration-lease
be_at(id, host, address, ttl)
return { 'registered', address }
