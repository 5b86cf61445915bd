-- Count the events that wait for one sink. At most `most` entries are counted, and the rest is estimated from them.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets), 2 run prefix
-- ARGV  1 sink, 2 most
-- returns { entries, events }
-- @include outbox_entry
local outbox, run_prefix = KEYS[1], KEYS[2]
local sink, most = ARGV[1], tonumber(ARGV[2])

local function waiting(run)
  local record = run_prefix .. run
  local again = redis.call('ZCARD', redeliveries_of(outbox, sink, run))
  local state, field = state_of(outbox, run_prefix, sink, run)
  local length = redis.pcall('XLEN', record .. ':events')
  if state ~= record or type(length) ~= 'number' then return again end
  -- The events of a run that was replayed after its removal are counted on from those of its former feed.
  local earlier = tonumber(redis.call('HGET', record, 'told')) or 0
  return again + math.max(earlier + length - read_entry(state, field).sequence, 0)
end

local entries, counted, events = redis.call('ZCARD', entries_of(outbox, sink)), 0, 0
if entries == 0 then return { 0, 0 } end
for _, run in ipairs(redis.call('ZRANGE', entries_of(outbox, sink), 0, most - 1)) do
  counted, events = counted + 1, events + waiting(run)
end
if counted > 0 then events = math.floor(events * entries / counted) end
return { entries, events }
