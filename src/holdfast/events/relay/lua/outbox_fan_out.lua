-- Add an entry per sink for each run that has new events; an existing entry is not changed: its next delivery reads the new
-- events. The keys of records depend on the outbox, so they can't be declared: they share the queue's hash tag.
-- KEYS  1 outbox (zset: run -> when it is due, ms), 2 run prefix, 3 undelivered (stream)
-- ARGV  1 how long other relays skip a run that the caller must route, ms, 2 how many runs to read,
--       3 '1' if there is an Event API, 4 how many undelivered are kept
-- returns { how many runs were read, ms until the next is due or -1, then rows:
--   { unrouted, run, agent, thread, tenant, submitted_at, message }: its receivers are not stored yet (outbox_route)
--   { gone, run, '' }: it was removed before all events were delivered, which is stored as an undelivered event
--   { unserved, run }: its events go to the Event API, and the caller has none }
-- @include clock
-- @include outbox_entry
local outbox, run_prefix, undelivered = KEYS[1], KEYS[2], KEYS[3]
local skip_ms, room, event_api, most = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4]
local REPLY_BYTES, UNSERVED_MS = 2097152, 5000

local now = now_ms()
local rows, bytes = { 0, -1 }, 0

local function fan_out(run)
  local have = redis.pcall('HMGET', run_prefix .. run, 'webhook', 'push', 'agent', 'thread', 'tenant', 'submitted_at', 'message',
    'status')
  if have.err or not have[8] then
    redis.call('ZREM', outbox, run)
    note_gone(undelivered, most, run, '')
    return { 'gone', run, '' }
  end
  local webhook, push = have[1], have[2]
  if not webhook and not push then
    redis.call('ZADD', outbox, now + skip_ms, run)
    bytes = bytes + #(have[7] or '')
    return { 'unrouted', run, have[3] or '', have[4] or '', have[5] or '', have[6] or '', have[7] or '' }
  end
  local sinks = { eventapi = event_api, webhook = (webhook or '') ~= '', push = (push or '') ~= '' }
  if not (sinks.eventapi or sinks.webhook or sinks.push) then
    redis.call('ZADD', outbox, now + UNSERVED_MS, run)
    return { 'unserved', run }
  end
  redis.call('ZREM', outbox, run)
  for sink, wanted in pairs(sinks) do
    if wanted then redis.call('ZADD', entries_of(outbox, sink), 'NX', 0, run) end
  end
end

for _, run in ipairs(redis.call('ZRANGEBYSCORE', outbox, '-inf', now, 'LIMIT', 0, room)) do
  if bytes > REPLY_BYTES then break end
  rows[1] = rows[1] + 1
  rows[#rows + 1] = fan_out(run)
end
rows[2] = due_in(outbox, now)
return rows
