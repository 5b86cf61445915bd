-- Give leases back; only their present holder can.
-- KEYS  1 table (zset: key -> expiry ms), 2 record prefix
-- ARGV  1 owner, then per lease: key, fence
-- returns, per lease: released | stale
-- @include held
local leases, prefix = KEYS[1], KEYS[2]
local owner = ARGV[1]

local words = {}
for i = 2, #ARGV, 2 do
  local key = ARGV[i]
  local word = 'stale'
  if held(prefix .. key, owner, ARGV[i + 1]) and redis.call('ZREM', leases, key) == 1 then -- guard: zset-release-fence
    redis.call('HSET', prefix .. key, 'owner', '')
    word = 'released'
  end
  words[#words + 1] = word
end
return words
