-- End a batch of runs, each once and only under the fence it ran under, and plan the next turn of each.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 record prefix, 6 priorities (zset),
--       7 changes (string)
-- ARGV  1 owner, 2 turns that a history keeps, then per run: name, fence, next run (s; '' = no turn is left), streak, outcome,
--       error, duration ms, failures in a row after which it is paused (0 = never), a turn that was perhaps placed beside it (s)
--       or '', this turn for the history (JSON) or ''
-- returns { keys thrown away }, then per run: completed | paused (completed, and its failures have paused the schedule) |
--       already (ended before: a reply was lost) | stale (changes nothing) | removed
-- @include state
-- @include turns
-- @include history
-- @include changes
local waiting, working, leases, definitions, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local priorities, changes = KEYS[6], KEYS[7]
local owner, kept = ARGV[1], tonumber(ARGV[2])
local FIRST, STRIDE, REMEMBERED_SECONDS = 3, 10, 7 * 86400

local now = as_score(now_us() / 1000000)
local ended, owner_json, changed = {}, cjson.encode(owner), false

local KEEPS_STREAK = { cancelled = true, skipped = true }

-- Turns that ran beside it have changed the streak since its owner read it, or a resume has reset it: it is counted on from
-- what stands here. Only where nothing stands, what the owner has read counts.
-- Returns the streak, and why the schedule is paused from now on or nil.
local function streak_after(known, at, manual)
  local told, outcome, most = tonumber(ARGV[at + 3]) or 0, ARGV[at + 4], tonumber(ARGV[at + 7]) or 0
  known = tonumber(known or nil)
  if manual or KEEPS_STREAK[outcome] then return known or told end -- guard: cancelled-keeps-streak
  if outcome == 'succeeded' then return told end
  local streak = known and known + 1 or told -- guard: failure-streak
  return streak, most > 0 and streak >= most and string.format('%.0f failures in a row', streak) or nil
end

-- An error stays until the next one, with its time: after a successful run a user still finds why the one before failed.
local function note_error(record, at)
  if ARGV[at + 5] ~= '' then redis.call('HSET', record, 'last_error', ARGV[at + 5], 'last_error_at', now) end -- guard: last-error-kept
end

local function note_history(of, at)
  local turn = ARGV[at + 9]
  if turn ~= '' then add_to_history(prefix, of, kept, ended_turn(now, owner_json, ARGV[at + 1], turn)) end
end

local function note(record, have, at, streak)
  local outcome, duration = ARGV[at + 4], ARGV[at + 6]
  -- A manual run is not one of its turns: it must not use up `max runs`.
  local runs = (tonumber(have[4]) or 0) + (have[6] and 0 or 1)
  redis.call('HSET', record, 'owner', '', 'streak', string.format('%.0f', streak), 'runs', string.format('%.0f', runs),
    'last_start', have[3] or '', 'last_end', now, 'last_duration_ms', duration, 'last_outcome', outcome)
  note_error(record, at)
  if have[10] then redis.call('HDEL', record, 'reclaimed') end
  if have[9] then redis.call('HDEL', record, 'cancel') end
  if have[11] and not have[6] then redis.call('HDEL', record, 'beside') end -- guard: manual-run-keeps-beside
end

local function pause_for(reason, name, record, cadence)
  redis.call('HSET', record, 'paused', reason, 'paused_since', now)
  local turn = redis.call('ZSCORE', waiting, name)
  if not turn then return end
  -- A manual run that has not begun is given up; its own turn stays.
  land(waiting, record, name, cadence or turn, true) -- guard: failure-pause-keeps-turn
  if cadence then redis.call('HDEL', record, 'cadence') end
end

-- The end of a turn that was a schedule of its own is counted for the schedule whose turn it was.
local function note_for(of, have, at)
  local record = prefix .. of
  if redis.call('HEXISTS', definitions, of) == 0 then return end
  local outcome, duration = ARGV[at + 4], ARGV[at + 6]
  local known = read_record(record, 'streak', 'paused_since', 'cadence')
  local streak, pause = streak_after(known[1] or '0', at)
  redis.call('HSET', record, 'streak', string.format('%.0f', streak), 'last_start', have[3] or '', 'last_end', now,
    'last_duration_ms', duration, 'last_outcome', outcome)
  note_error(record, at)
  note_history(of, at)
  if not pause or known[2] then return end
  pause_for(pause, of, record, known[3])
  return 'paused'
end

local function end_turn(record, name, of, have, at)
  local word = note_for(of, have, at) or 'completed'
  redis.call('HDEL', definitions, name)
  forget_turn(prefix, name)
  redis.call('ZREM', priorities, name)
  redis.call('ZREM', waiting, name)
  redis.call('DEL', record)
  local _, begun = backfill_keys(prefix, of)
  if call_sound('ZREM', begun, name) == 0 then return word end
  -- The same backfill asked for again must not run it again.
  redis.call('HSET', record, 'ended', ARGV[at + 4]) -- guard: backfilled-turn-ended
  redis.call('EXPIRE', record, REMEMBERED_SECONDS)
  let_backfill_on(waiting, definitions, priorities, prefix, of)
  return word
end

-- The one in doubt was not placed, then: it comes now, before what would have followed it.
local function not_placed(doubtful, beside)
  return doubtful ~= '' and (tonumber(beside or nil) or 0) < tonumber(doubtful) -- guard: doubtful-turn
end

local function plan(record, name, have, at, pause)
  local turn = not_placed(ARGV[at + 8], have[11]) and ARGV[at + 8] or ARGV[at + 2]
  local paused, cadence, replan, buffered = have[5], have[6], have[7], have[8]
  if cadence or replan or buffered then redis.call('HDEL', record, 'cadence', 'replan', 'buffered') end
  if pause and not paused then
    redis.call('HSET', record, 'paused', pause, 'paused_since', now)
    paused = now
  end
  turn = replan or cadence or turn -- guard: manual-run-keeps-turn
  changed = changed or turn == '' -- it is done
  if not buffered then return land(waiting, record, name, turn, paused) end -- guard: buffered-manual-run
  redis.call('HSET', record, 'cadence', turn)
  if paused then redis.call('HSET', record, 'next', turn) end
  redis.call('ZADD', waiting, now, name)
end

local function complete(at)
  local name, fence = ARGV[at], ARGV[at + 1]
  local record = prefix .. name
  local have = read_record(record, 'owner', 'fence', 'acquired_at', 'runs', 'paused_since', 'cadence', 'replan', 'buffered',
    'cancel', 'reclaimed', 'beside', 'streak')
  local word = refusal(have[1], have[2], owner, fence, definitions, name)
  if word then return word end -- guard: turn-history-fence
  ended[#ended + 1] = name
  if redis.call('HEXISTS', definitions, name) == 0 then -- guard: complete-defined-only
    redis.call('ZREM', waiting, name)
    forget_record(record)
    return 'removed'
  end
  local of = schedule_of(name)
  if of then return end_turn(record, name, of, have, at) end -- guard: single-turn-removed
  local streak, pause = streak_after(have[12], at, have[6])
  note(record, have, at, streak)
  note_history(name, at)
  plan(record, name, have, at, pause)
  return pause and not have[5] and 'paused' or 'completed'
end

local words = { discarded }
for at = FIRST, #ARGV, STRIDE do
  words[#words + 1] = complete(at)
  changed = changed or words[#words] == 'paused'
end
if changed then note_change(changes) end -- guard: completion-notes-change
if #ended > 0 then
  redis.call('ZREM', working, unpack(ended))
  redis.call('ZREM', leases, unpack(ended))
end
return words
