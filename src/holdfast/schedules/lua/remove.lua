-- Remove schedules for good. One that runs keeps its record until its run ends, and is not planned again.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 priorities (zset), 6 record prefix
-- ARGV  1 why running ones should stop, or '' to let them end, then names
-- returns, per schedule: removed | unknown
-- @include state
local waiting, working, leases, definitions, priorities, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local stop = ARGV[1]

local function remove(name)
  local known = redis.call('HDEL', definitions, name) == 1
  redis.call('ZREM', priorities, name)
  redis.call('ZREM', waiting, name)
  local record = prefix .. name
  if not redis.call('ZSCORE', leases, name) then
    redis.call('ZREM', working, name)
    redis.call('DEL', record)
  elseif known and stop ~= '' then
    read_record(record, 'owner')
    redis.call('HSET', record, 'cancel', stop)
  end
  return known and 'removed' or 'unknown'
end

local words = {}
for i = 2, #ARGV do words[#words + 1] = remove(ARGV[i]) end
return words
