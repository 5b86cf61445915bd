-- Let paused schedules take their turns again: the one they had, or the one that is given. Their failures are counted anew.
-- KEYS  1 waiting (zset), 2 leases (zset), 3 definitions (hash), 4 record prefix, 5 nudge (channel),
--       6 changes (string)
-- ARGV  per schedule: name, its next turn (s) or '' (the one it had; missed meanwhile = now), revision ('' = just now)
-- returns, per schedule: resumed | already (it is not paused) | unknown | stale (something newer was decided)
-- @include state
-- @include changes
local waiting, leases, definitions, prefix, nudge = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local changes = KEYS[6]

local now = as_score(now_us() / 1000000)

local function resume(name, at, revision)
  if redis.call('HEXISTS', definitions, name) == 0 then return 'unknown' end
  local record = prefix .. name
  local have = read_record(record, 'paused_since', 'next', 'done', 'cadence', 'revision')
  if outdated(revision, have[5]) then return 'stale' end
  if have[1] or revision ~= '' then revise(record, revision, have[5]) end
  if not have[1] then return 'already' end
  redis.call('HDEL', record, 'paused', 'paused_since', 'next')
  -- What it was paused for is taken for mended: one more failure must not pause it again at once.
  redis.call('HSET', record, 'streak', '0') -- guard: resume-resets-streak
  if redis.call('ZSCORE', leases, name) then return 'resumed' end
  if have[3] and not have[2] then return 'resumed' end
  local turn = at ~= '' and at or have[2] or now
  if redis.call('ZSCORE', waiting, name) then
    redis.call('HSET', record, 'cadence', turn)
  else
    redis.call('HDEL', record, 'cadence')
    land(waiting, record, name, turn)
  end
  return 'resumed'
end

local words, changed = {}, false
for i = 1, #ARGV, 3 do
  words[#words + 1] = resume(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  changed = changed or words[#words] == 'resumed'
end
if changed then note_change(changes) end
redis.call('PUBLISH', nudge, 'resumed')
return words
