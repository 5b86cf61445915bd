-- Advance the cursors of entries past an event that was delivered, or given up and stored as undelivered. Only forward, and only
-- for the present holder; after the last event that the holder has read, the reply has the next ones, or the entry is removed.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets), 2 run prefix, 3 undelivered (stream)
-- ARGV  1 owner, 2 how many undelivered are kept,
--       then per entry: run, sink, fence, event id, position, why it was given up or '', '1' if the holder has read no more events,
--       initial refusals of the next event, facts of the run if the event was given up (JSON)
-- returns, per entry: advanced | done (no longer held: all events are delivered, or events must be delivered again first) | stale |
--   { more, then per event: id, type, data }
-- @include outbox_entry
local outbox, run_prefix, undelivered = KEYS[1], KEYS[2], KEYS[3]
local owner, most = ARGV[1], ARGV[2]
local STRIDE = 9

local function is_after(id, other)
  local ms, n = id:match('^(%d+)-(%d+)$')
  local other_ms, other_n = other:match('^(%d+)-(%d+)$')
  ms, n, other_ms, other_n = tonumber(ms), tonumber(n), tonumber(other_ms), tonumber(other_n)
  return ms > other_ms or (ms == other_ms and n > other_n)
end

local function note(record, run, sink, id, sequence, why, origin)
  local event = redis.call('XRANGE', record .. ':events', id, id)[1]
  local kind, data = '', ''
  for i = 1, event and #event[2] or 0, 2 do
    if event[2][i] == 'type' then kind = event[2][i + 1] end
    if event[2][i] == 'data' then data = event[2][i + 1] end
  end
  -- The run may be removed before the event is delivered again: the facts that the request needs are stored with the event.
  redis.call('XADD', undelivered, 'MAXLEN', '~', most, '*', 'run_id', run, 'event_id', id, 'sequence', sequence, 'type', kind,
    'sink', sink, 'error', why, 'data', data, 'address', redis.call('HGET', record, sink) or '', 'origin', origin)
end

local function advance(at)
  local run, sink, fence, id, sequence = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  local why, last, refusals = ARGV[at + 5], ARGV[at + 6] == '1', tonumber(ARGV[at + 7])
  local record = run_prefix .. run
  local state, field = state_of(outbox, run_prefix, sink, run)
  if redis.call('HEXISTS', state, field) == 0 then return 'stale' end
  local entry = read_entry(state, field)
  if entry.fence ~= fence or (entry.owner ~= owner and entry.owner ~= '-') then return 'stale' end
  if entry.owner == '-' then return entry.cursor == id and 'done' or 'stale' end
  if is_after(id, entry.cursor) then
    if why ~= '' then
      note(record, run, sink, id, sequence, why, ARGV[at + 8])
    else
      entry.tries, entry.since = 0, 0
    end
    entry.cursor, entry.sequence, entry.refusals = id, tonumber(sequence), refusals
  end
  local word = 'advanced'
  if last then
    word = { 'more' }
    if redis.call('EXISTS', redeliveries_of(outbox, sink, run)) == 1 then -- guard: redelivery-after-a-page
      word, entry.owner = 'done', '-'
      redis.call('ZADD', entries_of(outbox, sink), 0, run)
    else
      events_after(record, entry.cursor, word)
      if not word[2] then
        word, entry.owner = 'done', '-'
        redis.call('ZREM', entries_of(outbox, sink), run)
      end
    end
  end
  write_entry(state, field, entry)
  return word
end

local words = {}
for at = 3, #ARGV, STRIDE do words[#words + 1] = advance(at) end
return words
