-- A schedule is in exactly one place: in `waiting`, in `working` (always with a lease), paused (its next turn is kept in its
-- record) or done. Every script that moves one does it through these.
-- Record: fence, owner, trigger (fingerprint of what the turns follow from), timeout_ms, streak, runs, ready, acquired_at, last_…,
--   paused (why), paused_since, next (the turn it has while paused), done, reclaimed (crashes since it last ended),
--   cadence (present = a manual run: the turn to go back to), replan (the turn that a changed trigger gives it after this run),
--   buffered (a manual run asked for while it ran), cancel (why its holder should stop),
--   beside (the last turn placed beside the one that goes on), names (how many turns there may be at once), backfill_most (the
--   same for its backfill); ended (of a turn, for a while: it was backfilled)

-- Time is Redis TIME: microseconds for fences, seconds for scores.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function as_score(seconds)
  return string.format('%.6f', seconds)
end

-- At least the clock: a fence never repeats, not after a removal, a lost record or a failover that lost the last one.
local function raise_fence(stored, clock_us)
  return string.format('%.0f', math.max((tonumber(stored) or 0) + 1, clock_us)) -- guard: schedule-fence-rises
end

-- A record is only state. One that was overwritten by another type is discarded: it must not fail a whole batch.
local function read_record(record, ...)
  local have = redis.pcall('HMGET', record, ...) -- guard: schedule-damaged-record
  if not have.err then return have end
  redis.call('DEL', record)
  return {}
end

-- No schedule is called like this. Whoever held it could neither keep nor end it: its name is no text that comes back the same.
local function is_unreadable(name)
  return name:find('[^ -~]') ~= nil
end

-- at '' = no turn is left. A manual run of a paused schedule goes to `waiting` all the same.
local function land(waiting, record, name, at, paused)
  if at == '' then
    redis.call('ZREM', waiting, name)
    redis.call('HSET', record, 'done', '1')
  elseif paused then -- guard: paused-stays-out
    redis.call('ZREM', waiting, name)
    redis.call('HSET', record, 'next', at)
  else
    redis.call('ZADD', waiting, at, name)
  end
end

-- Who may end a run: nil if this owner holds it under this fence, else the word to answer with.
-- Ended or given back before (a reply was lost): the fence is still that of this run, but it has no owner any more.
local function refusal(have_owner, have_fence, owner, fence, definitions, name)
  if have_fence == fence then -- guard: schedule-ownership-fence
    if have_owner == owner then return nil end -- guard: completion-already-done
    return have_owner == '' and 'already' or 'stale'
  end
  if not have_fence and redis.call('HEXISTS', definitions, name) == 0 then return 'removed' end
  return 'stale' -- guard: stale-completion
end

-- Forget a schedule that is not defined any more. The revision of its removal is kept for a while: whoever has read an older
-- definition before must not write it after.
local function forget_record(record)
  local revision = read_record(record, 'revision')[1]
  redis.call('DEL', record)
  if not revision then return end
  redis.call('HSET', record, 'revision', revision)
  redis.call('EXPIRE', record, 600) -- guard: removal-revision-kept
end

-- Back to where it was before the run: nothing ended, so its turn and a manual run still stand.
local function come_back(waiting, record, name, at, paused, cadence, replan)
  redis.call('HDEL', record, 'cancel', 'replan')
  land(waiting, record, name, replan or at, paused and not cadence) -- guard: reclaimed-schedule-planned
end
