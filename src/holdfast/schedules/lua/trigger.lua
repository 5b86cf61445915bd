-- Run schedules now, beside their turns: after it each goes back to the turn it had. One that runs is run once more.
-- KEYS  1 waiting (zset), 2 leases (zset), 3 definitions (hash), 4 record prefix, 5 nudge (channel)
-- ARGV  names
-- returns, per schedule: triggered | buffered (it runs: once more after that) | unknown
-- @include state
local waiting, leases, definitions, prefix, nudge = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local now = now_us() / 1000000

local function trigger(name)
  if redis.call('HEXISTS', definitions, name) == 0 then return 'unknown' end
  local record = prefix .. name
  local have = read_record(record, 'cadence', 'next', 'done')
  if redis.call('ZSCORE', leases, name) then
    redis.call('HSET', record, 'buffered', '1')
    return 'buffered'
  end
  local score = redis.call('ZSCORE', waiting, name)
  if score then
    if not have[1] then redis.call('HSET', record, 'cadence', score) end
    if tonumber(score) > now then redis.call('ZADD', waiting, as_score(now), name) end
    return 'triggered'
  end
  -- Paused: back to the turn that it keeps. Done: none. Lost: its turn is now, too.
  local turn = have[2] or (have[3] and '' or as_score(now))
  redis.call('HSET', record, 'cadence', turn)
  redis.call('ZADD', waiting, as_score(now), name)
  return 'triggered'
end

local words = {}
for i = 1, #ARGV do words[i] = trigger(ARGV[i]) end
redis.call('PUBLISH', nudge, 'triggered')
return words
