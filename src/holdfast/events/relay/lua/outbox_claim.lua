-- Claim entries of one sink that are due, for one owner, each under a new fence, with their next events.
-- The keys of records and feeds depend on the entries, so they can't be declared: they share the queue's hash tag.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets: run -> when it is due, ms), 2 run prefix, 3 undelivered (stream)
-- ARGV  1 owner, 2 ttl ms, 3 how many entries to read, 4 sink, 5 how many undelivered are kept
-- returns { Redis TIME in ms, how many entries were read, ms until the next is due or -1, then rows:
--   { entry, run, fence, position of the last finished event, tries, refusals, failing since ms, address, submitted_at,
--     then per event: id, type, data }
--   { redelivery, …the same, then per event to deliver again: id among the undelivered, id, type, data, position, address, origin }
--   { gone, run, sink }: the run was removed before all events were delivered, which is stored as an undelivered event }
-- @include clock
-- @include outbox_entry
local outbox, run_prefix, undelivered = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, room, sink, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local REPLY_BYTES = 2097152
local budget = 2000 -- undelivered events that one claim reads at most

local entries = entries_of(outbox, sink)
local now = now_ms()
local rows, bytes = { now, 0, -1 }, 0

-- Adds a page of the events that an entry delivers again; events that are not stored any more are skipped. Returns the bytes, and
-- whether the page is empty only because the budget was used up.
local function add_redeliveries(run, row)
  local waiting, size, head = redeliveries_of(outbox, sink, run), 0, #row
  local ids = redis.call('ZRANGE', waiting, 0, PAGE - 1)
  while ids[1] and #row == head and budget > 0 do
    budget = budget - #ids
    for _, id in ipairs(ids) do
      local kept = read_undelivered(undelivered, id)
      if not kept then
        redis.call('ZREM', waiting, id)
      elseif size <= PAGE_BYTES then
        for _, part in ipairs({ id, kept.event_id, kept.type, kept.data, kept.sequence, kept.address or '', kept.origin or '' }) do
          row[#row + 1] = part
        end
        size = size + #kept.data
      end
    end
    ids = redis.call('ZRANGE', waiting, 0, PAGE - 1)
  end
  return size, ids[1] and #row == head
end

local function claim(run)
  local record = run_prefix .. run
  local have = redis.pcall('HMGET', record, 'status', 'submitted_at', sink)
  local exists = not have.err and have[1]
  local state, field = state_of(outbox, run_prefix, sink, run)
  local entry = read_entry(state, field)
  entry.fence, entry.owner = entry.fence + 1, owner
  local row = { 'redelivery', run, entry.fence, entry.sequence, entry.tries, entry.refusals, string.format('%d', entry.since),
    exists and have[3] or '', exists and have[2] or '' }
  local head = #row
  local size, unfinished = 0, false
  size, unfinished = add_redeliveries(run, row) -- guard: redeliveries-first
  if unfinished then return nil end -- the entry stays due: the next claim continues
  bytes = bytes + size
  if #row == head and not exists then
    redis.call('ZREM', entries, run)
    redis.call('HDEL', state, field)
    note_gone(undelivered, most, run, sink)
    return { 'gone', run, sink }
  end
  if #row == head then
    row[1] = 'entry'
    bytes = bytes + events_after(record, entry.cursor, row)
  end
  if #row == head then
    redis.call('ZREM', entries, run)
    return nil
  end
  write_entry(state, field, entry)
  redis.call('ZADD', entries, now + ttl, run)
  return row
end

for _, run in ipairs(redis.call('ZRANGEBYSCORE', entries, '-inf', now, 'LIMIT', 0, room)) do
  if bytes > REPLY_BYTES then break end
  rows[2] = rows[2] + 1
  rows[#rows + 1] = claim(run)
end
rows[3] = due_in(entries, now)
return rows
