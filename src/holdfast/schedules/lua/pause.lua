-- Take schedules out of their turn until resumed; one that runs ends its run first.
-- KEYS  1 waiting (zset), 2 definitions (hash), 3 record prefix
-- ARGV  1 reason, then names
-- returns, per schedule: paused | already | unknown
-- @include state
local waiting, definitions, prefix = KEYS[1], KEYS[2], KEYS[3]
local reason = ARGV[1]

local now = as_score(now_us() / 1000000)

local function pause(name)
  if redis.call('HEXISTS', definitions, name) == 0 then return 'unknown' end
  local record = prefix .. name
  local have = read_record(record, 'paused_since', 'cadence')
  if have[1] then return 'already' end
  redis.call('HSET', record, 'paused', reason, 'paused_since', now)
  local score = redis.call('ZSCORE', waiting, name)
  if not score then return 'paused' end
  -- A manual run that has not begun is given up; its own turn stays.
  land(waiting, record, name, have[2] or score, true)
  redis.call('HDEL', record, 'cadence')
  return 'paused'
end

local words = {}
for i = 2, #ARGV do words[#words + 1] = pause(ARGV[i]) end
return words
