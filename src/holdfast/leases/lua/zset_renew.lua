-- Renew many sorted-set leases in one call, each only for the owner and fence that hold it.
-- KEYS  1 table (zset: key -> expiry ms), 2 record prefix
-- ARGV  1 owner, 2 ttl ms, then per lease: key, fence
-- returns, per lease: kept | lost | stop (kept, and its holder was requested to stop)
-- @include clock
-- @include held
local leases, prefix = KEYS[1], KEYS[2]
local owner, ttl = ARGV[1], tonumber(ARGV[2])

local now, standings = now_ms(), {}
for i = 3, #ARGV, 2 do
  local key = ARGV[i]
  local standing = 'lost'
  if held(prefix .. key, owner, ARGV[i + 1]) and redis.call('ZSCORE', leases, key) then
    redis.call('ZADD', leases, now + ttl, key)
    standing = redis.call('HEXISTS', prefix .. key, 'cancel') == 1 and 'stop' or 'kept'
  end
  standings[#standings + 1] = standing
end
return standings
