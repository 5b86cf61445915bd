-- An outbox entry is a run and a sink: the run's events that this sink's receiver has not accepted yet. Each sink has a sorted set
-- beside the outbox: run -> when it is due, in ms; for an entry that a relay holds, when its lease ends. The entry's state is in the
-- run's record as `relay:<sink>`: fence, owner ('-' is none), id and position of the last finished event, failed tries, refusals
-- of the next event (or 1000 and how often the receiver rejected it), and since when it fails (ms, 0 = it does not). The entry of a
-- removed run has only events to deliver again, and its state is in `<outbox>:departed` as `<sink> <run>`.
local function entries_of(outbox, sink)
  return outbox .. ':' .. sink
end

-- Milliseconds until the first member of a set of due times is due; -1 if the set is empty.
local function due_in(schedule, now)
  local first = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')
  return first[2] and math.max(math.ceil(tonumber(first[2]) - now), 0) or -1
end

-- The undelivered events that an entry delivers again, by their position (zset); they come before what the feed has next.
local function redeliveries_of(outbox, sink, run)
  return outbox .. ':redeliver:' .. sink .. ':' .. run
end

-- Returns the hash of an entry's state, and the field in it.
local function state_of(outbox, run_prefix, sink, run)
  local record = run_prefix .. run
  if redis.pcall('HEXISTS', record, 'status') == 1 then return record, 'relay:' .. sink end
  return outbox .. ':departed', sink .. ' ' .. run
end

local function read_entry(state, field)
  local packed = redis.call('HGET', state, field)
  if not packed then
    -- The events of a run that was replayed after its removal are counted on from those of its former feed.
    local earlier = tonumber(redis.call('HGET', state, 'told')) or 0
    return { fence = 0, owner = '-', cursor = '0-0', sequence = earlier, tries = 0, refusals = 0, since = 0 } -- guard: revived-run-sequence
  end
  local fence, owner, cursor, sequence, tries, refusals, since =
    packed:match('^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    fence = tonumber(fence), owner = owner, cursor = cursor, sequence = tonumber(sequence), tries = tonumber(tries),
    refusals = tonumber(refusals), since = tonumber(since),
  }
end

local function write_entry(state, field, entry)
  redis.call('HSET', state, field, string.format('%d %s %s %d %d %d %d', entry.fence, entry.owner, entry.cursor,
    entry.sequence, entry.tries, entry.refusals, entry.since))
end

local function note_gone(undelivered, most, run, sink)
  redis.call('XADD', undelivered, 'MAXLEN', '~', most, '*', 'run_id', run, 'event_id', '', 'sequence', '', 'type', '',
    'sink', sink, 'error', 'the run left before all its events were delivered', 'data', '')
end

-- Returns the fields of an undelivered event; nil if it is not stored any more.
local function read_undelivered(undelivered, id)
  local event = redis.call('XRANGE', undelivered, id, id)[1]
  if not event then return nil end
  local fields = {}
  for i = 1, #event[2], 2 do fields[event[2][i]] = event[2][i + 1] end
  return fields
end

-- Adds the events after the cursor, as { id, type, data, … }: a page with a limited number and size. Returns its bytes.
local PAGE, PAGE_BYTES = 20, 262144
local function events_after(record, cursor, into)
  local bytes = 0
  for _, event in ipairs(redis.call('XRANGE', record .. ':events', '(' .. cursor, '+', 'COUNT', PAGE)) do
    local kind, data = '', 'null'
    for i = 1, #event[2], 2 do
      if event[2][i] == 'type' then kind = event[2][i + 1] end
      if event[2][i] == 'data' then data = event[2][i + 1] end
    end
    local n = #into
    into[n + 1], into[n + 2], into[n + 3] = event[1], kind, data
    bytes = bytes + #data
    if bytes > PAGE_BYTES then break end
  end
  return bytes
end
