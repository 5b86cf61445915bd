-- Take schedules out of their turn until resumed; one that runs ends its run first.
-- KEYS  1 waiting (zset), 2 definitions (hash), 3 record prefix, 4 changes (string)
-- ARGV  1 reason, 2 since when (s; '' = now), 3 '1' to give paused ones this reason, too,
--       then per schedule: name, revision of the pause ('' = just now)
-- returns, per schedule: paused | already | unknown | stale (something newer was decided)
-- @include state
-- @include changes
local waiting, definitions, prefix, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local reason, anew = ARGV[1], ARGV[3] == '1'

local now = as_score(now_us() / 1000000)
local since = ARGV[2] ~= '' and ARGV[2] or now

local function pause(name, revision)
  if redis.call('HEXISTS', definitions, name) == 0 then return 'unknown' end
  local record = prefix .. name
  local have = read_record(record, 'paused_since', 'cadence', 'revision')
  if outdated(revision, have[3]) then return 'stale' end
  if have[1] then
    if anew then redis.call('HSET', record, 'paused', reason, 'paused_since', since) end -- guard: pause-reason-replaced
    if revision ~= '' then revise(record, revision, have[3]) end
    return 'already'
  end
  revise(record, revision, have[3])
  redis.call('HSET', record, 'paused', reason, 'paused_since', since)
  local score = redis.call('ZSCORE', waiting, name)
  if not score then return 'paused' end
  -- A manual run that has not begun is given up; its own turn stays.
  land(waiting, record, name, have[2] or score, true)
  redis.call('HDEL', record, 'cadence')
  return 'paused'
end

local words, changed = {}, false
for i = 4, #ARGV, 2 do
  words[#words + 1] = pause(ARGV[i], ARGV[i + 1])
  changed = changed or words[#words] == 'paused'
end
if changed then note_change(changes) end
return words
