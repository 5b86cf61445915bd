-- Write or refresh the record of a live process; it never exists without a ttl.
-- KEYS  1 member (hash with ttl)
-- ARGV  1 ttl ms, then field, value, …
-- returns Redis TIME in ms
-- @include clock
local member = KEYS[1]

redis.call('DEL', member)
for i = 2, #ARGV, 2 do redis.call('HSET', member, ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', member, ARGV[1])
return now_ms()
