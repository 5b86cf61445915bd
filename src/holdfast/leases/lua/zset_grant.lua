-- Grant a lease on a free or expired key, with a fence higher than any before.
-- KEYS  1 table (zset: key -> expiry ms), 2 record prefix
-- ARGV  1 owner, 2 ttl ms, then keys
-- returns, per key: the new fence, or 0 if somebody else holds it
-- @include clock
local leases, prefix = KEYS[1], KEYS[2]
local owner, ttl = ARGV[1], tonumber(ARGV[2])

local now, fences = now_ms(), {}
for i = 3, #ARGV do
  local key = ARGV[i]
  local expiry = redis.call('ZSCORE', leases, key)
  local fence = 0
  if not expiry or tonumber(expiry) <= now then
    fence = redis.call('HINCRBY', prefix .. key, 'fence', 1)
    redis.call('HSET', prefix .. key, 'owner', owner)
    redis.call('ZADD', leases, now + ttl, key)
  end
  fences[#fences + 1] = fence
end
return fences
