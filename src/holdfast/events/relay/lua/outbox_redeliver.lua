-- Queue undelivered events for the next holder of their run's entry, in the order of their positions and before the next events of
-- the feed. An event stays among the undelivered until its receiver has accepted it, so a second call changes nothing.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets), 2 run prefix, 3 undelivered (stream)
-- ARGV  ids among the undelivered
-- returns, per id: queued | waiting (it was queued before) | missing | eventless (it only notes that a run was removed) |
--   unaddressed (its run was removed, and its receivers were not stored)
-- @include outbox_entry
local outbox, run_prefix, undelivered = KEYS[1], KEYS[2], KEYS[3]

local function redeliver(id)
  local kept = read_undelivered(undelivered, id)
  if not kept then return 'missing' end
  if kept.event_id == '' then return 'eventless' end
  local run, sink = kept.run_id, kept.sink
  local state, field = state_of(outbox, run_prefix, sink, run)
  local exists = state == run_prefix .. run
  if not exists and not kept.origin then return 'unaddressed' end
  local added = redis.call('ZADD', redeliveries_of(outbox, sink, run), 'NX', tonumber(kept.sequence), id)
  local entry = read_entry(state, field)
  if entry.owner == '-' then
    entry.tries, entry.refusals, entry.since = 0, 0, 0 -- the receiver gets all tries and the whole time again
    write_entry(state, field, entry)
    redis.call('ZADD', entries_of(outbox, sink), 0, run)
  else
    redis.call('ZADD', entries_of(outbox, sink), 'NX', 0, run) -- guard: redelivery-leaves-the-holder
  end
  return added == 1 and 'queued' or 'waiting'
end

local words = {}
for i, id in ipairs(ARGV) do words[i] = redeliver(id) end
redis.pcall('PUBLISH', outbox .. ':notify', 'redeliver') -- for relays; without access to the channel they read the entries when they poll
return words
