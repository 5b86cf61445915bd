-- Move lines past an event: it was delivered, or given up and noted among the undelivered. Only forward, and only by their
-- present holder; after the last event that it knows, the holder is given the next ones, or the line leaves.
-- KEYS  1 outbox (its lines are `<outbox>:<sink>`, zsets), 2 run prefix, 3 undelivered (stream)
-- ARGV  1 owner, 2 how many undelivered are kept,
--       then per line: run, sink, fence, event id, position, why it was given up or '', '1' if the holder knows no more events,
--       refusals that the next event begins with, what is told of the run if it was given up (JSON)
-- returns, per line: moved | done (no longer held: all is delivered, or there are events to deliver again first) | stale |
--   { more, then per event: id, type, data }
-- @include line
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
  local entry = redis.call('XRANGE', record .. ':events', id, id)[1]
  local kind, data = '', ''
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'type' then kind = entry[2][i + 1] end
    if entry[2][i] == 'data' then data = entry[2][i + 1] end
  end
  -- The run may have left when its events are delivered again: what the request needs of it is kept beside the event.
  redis.call('XADD', undelivered, 'MAXLEN', '~', most, '*', 'run_id', run, 'event_id', id, 'sequence', sequence, 'type', kind,
    'sink', sink, 'error', why, 'data', data, 'address', redis.call('HGET', record, sink) or '', 'origin', origin)
end

local function move(at)
  local run, sink, fence, id, sequence = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  local why, last, refusals = ARGV[at + 5], ARGV[at + 6] == '1', tonumber(ARGV[at + 7])
  local record = run_prefix .. run
  local state, field = state_of(outbox, run_prefix, sink, run)
  if redis.call('HEXISTS', state, field) == 0 then return 'stale' end
  local line = read_line(state, field)
  if line.fence ~= fence or (line.owner ~= owner and line.owner ~= '-') then return 'stale' end
  if line.owner == '-' then return line.cursor == id and 'done' or 'stale' end
  if is_after(id, line.cursor) then
    if why ~= '' then
      note(record, run, sink, id, sequence, why, ARGV[at + 8])
    else
      line.tries, line.since = 0, 0
    end
    line.cursor, line.sequence, line.refusals = id, tonumber(sequence), refusals
  end
  local word = 'moved'
  if last then
    word = { 'more' }
    if redis.call('EXISTS', redeliveries_of(outbox, sink, run)) == 1 then -- guard: redelivery-after-a-page
      word, line.owner = 'done', '-'
      redis.call('ZADD', lines_of(outbox, sink), 0, run)
    else
      events_after(record, line.cursor, word)
      if not word[2] then
        word, line.owner = 'done', '-'
        redis.call('ZREM', lines_of(outbox, sink), run)
      end
    end
  end
  write_line(state, field, line)
  return word
end

local words = {}
for at = 3, #ARGV, STRIDE do words[#words + 1] = move(at) end
return words
