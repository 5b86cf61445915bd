-- Register the store of a system: the first process wins, and the others read its registration.
-- KEYS  1 registered store (hash)
-- ARGV  1 'replace' to replace an existing registration, else '', then field, value, …
-- returns field, value, … of the present registration
-- @include clock
local registered, replace = KEYS[1], ARGV[1] == 'replace'

if replace then redis.call('DEL', registered) end
if redis.call('EXISTS', registered) == 0 then -- guard: store-registered-once
  for i = 2, #ARGV, 2 do redis.call('HSET', registered, ARGV[i], ARGV[i + 1]) end
  redis.call('HSET', registered, 'registered_at', now_ms())
end
return redis.call('HGETALL', registered)
