-- Register the store of a system: of several first processes one wins, and the others learn which.
-- KEYS  1 registered store (hash)
-- ARGV  1 'replace' to replace a registration that stands, else '', then field, value, …
-- returns field, value, … of the registration that stands now
-- @include clock
local registered, replace = KEYS[1], ARGV[1] == 'replace'

if replace then redis.call('DEL', registered) end
if redis.call('EXISTS', registered) == 0 then -- guard: store-registered-once
  for i = 2, #ARGV, 2 do redis.call('HSET', registered, ARGV[i], ARGV[i + 1]) end
  redis.call('HSET', registered, 'registered_at', now_ms())
end
return redis.call('HGETALL', registered)
