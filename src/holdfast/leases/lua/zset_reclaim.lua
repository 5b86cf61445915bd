-- Take leases away from owners that stopped renewing; the fence rises, so whatever they still write is refused.
-- KEYS  1 table (zset: key -> expiry ms), 2 record prefix
-- ARGV  1 at most
-- returns the keys that are free again
-- @include clock
local leases, prefix = KEYS[1], KEYS[2]
local limit = tonumber(ARGV[1])

local expired = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms(), 'LIMIT', 0, limit)
for _, key in ipairs(expired) do
  redis.call('ZREM', leases, key)
  redis.call('HSET', prefix .. key, 'owner', '')
  redis.call('HINCRBY', prefix .. key, 'fence', 1)
end
return expired
