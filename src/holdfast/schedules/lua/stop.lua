-- Ask whoever runs these schedules to stop; the next renewal tells them.
-- KEYS  1 leases (zset), 2 definitions (hash), 3 record prefix
-- ARGV  1 reason, then names
-- returns, per schedule: stopping | idle | unknown
-- @include state
local leases, definitions, prefix = KEYS[1], KEYS[2], KEYS[3]
local reason = ARGV[1]

local function stop(name)
  if not redis.call('ZSCORE', leases, name) then
    return redis.call('HEXISTS', definitions, name) == 1 and 'idle' or 'unknown'
  end
  read_record(prefix .. name, 'owner')
  redis.call('HSET', prefix .. name, 'cancel', reason)
  return 'stopping'
end

local words = {}
for i = 2, #ARGV do words[#words + 1] = stop(ARGV[i]) end
return words
