-- Remove expired runs: record, feed and index entry, a page at a time.
-- A run that was submitted again under the same id, after its record was deleted by hand, only loses the old note. A run with
-- events that are not delivered yet stays until they are. The fields that a replay of its dead letter needs are kept.
-- KEYS  1 ended (zset), 2 runs (zset), 3 run prefix, 4 outbox (zset; others of it by sink), 5 unarchived (list),
--       6 dead letters (stream), 7 letters (hash)
-- ARGV  1 how many runs to read, 2 retention ms
-- returns { runs read, runs removed }
-- @include clock
-- @include record
-- @include notes
local ended, index, run_prefix, outbox, unarchived = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deadletter, letters = KEYS[6], KEYS[7]
local LATER_MS, ARCHIVE_MS = 60000, 86400000
local LIVE = { queued = true, delayed = true, running = true, interrupted = true }

-- Whether events of a run wait for a receiver: then the run is in the outbox, or in the set of a sink.
local function has_undelivered(id, has_outbox)
  if not has_outbox then return false end
  for _, sink in ipairs({ '', ':eventapi', ':webhook', ':push' }) do
    if redis.call('ZSCORE', outbox .. sink, id) then return true end
  end
  return false
end

-- The letter itself has agent, message, thread and fence. Receivers order events by their number, so it must continue after a replay.
local KEPT = { tenant = true, key = true, bound = true, outbox = true, submitted_at = true, interrupts = true }
local function keep_for_replay(record, letter)
  if not letter or #redis.call('XRANGE', deadletter, letter, letter) == 0 then return end
  local fields, kept, events = redis.call('HGETALL', record), {}, redis.call('XLEN', record .. ':events')
  for i = 1, #fields, 2 do
    local name = fields[i]
    if name == 'told' then events = events + tonumber(fields[i + 1]) end
    if KEPT[name] or name:find('^resume:') or name:find('^envelope:') then
      kept[#kept + 1] = name
      kept[#kept + 1] = fields[i + 1]
    end
  end
  kept[#kept + 1] = 'told'
  kept[#kept + 1] = string.format('%d', events)
  redis.call('HSET', letters, letter, cjson.encode(kept))
end

local now, retention = now_ms(), tonumber(ARGV[2])

-- Runs are archived in the order in which they ended: each that ended before the first waiting one is in the store. A run that is
-- not archived stays a day longer at most, as there may be no janitor.
local first = redis.call('LINDEX', unarchived, 0)
local all_before = first and (tonumber(first:match('^%d+') or nil) or 0) -- guard: unarchived-first-end
local function waits_for_archive(finished_at)
  if not first then return false end
  local finished = tonumber(finished_at or nil) or 0
  return finished >= all_before and now < finished + retention + ARCHIVE_MS -- guard: expire-after-archive
end

local keys, gone, late = {}, {}, {}
local function expire_run(id, finished_at)
  local record = run_prefix .. id
  local have = read_fields(record, 'status', 'dead', 'outbox', 'finished_at')
  if LIVE[have[1]] then return end -- guard: expire-ended-only
  -- A later run of the same id has its own note.
  if finished_at and have[4] and have[4] ~= finished_at then return end -- guard: expire-same-end
  -- A note of a single run has no time: the time in the run's record counts.
  local expires_at = (tonumber(have[4] or nil) or 0) + retention
  if not finished_at and expires_at > now then -- guard: expire-not-early
    late[#late + 1] = math.min(expires_at, now + retention)
    late[#late + 1] = id
    return
  end
  if has_undelivered(id, have[3]) or waits_for_archive(have[4]) then -- guard: expire-after-delivery
    late[#late + 1] = now + LATER_MS
    late[#late + 1] = id
    return
  end
  keep_for_replay(record, have[2]) -- guard: expire-keeps-replay
  keys[#keys + 1] = record
  keys[#keys + 1] = record .. ':events'
  gone[#gone + 1] = id
end

local most, read_runs, seen = tonumber(ARGV[1]), 0, {}
for _, note in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', now, 'LIMIT', 0, most)) do
  if read_runs >= most then break end
  local finished_at, ids = read_note(note)
  for _, id in ipairs(ids) do expire_run(id, finished_at) end
  read_runs = read_runs + #ids
  seen[#seen + 1] = note
end
if seen[1] then redis.call('ZREM', ended, unpack(seen)) end
if late[1] then redis.call('ZADD', ended, unpack(late)) end
if gone[1] then
  redis.call('UNLINK', unpack(keys))
  redis.call('ZREM', index, unpack(gone))
end
return { read_runs, #gone }
