-- Advance entries past an event that was delivered again, or given up again, which stores it with the new reason. Only for
-- the present holder. After the last event that the holder has read the entry is released: the next claim reads the rest.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets), 2 run prefix, 3 undelivered (stream)
-- ARGV  1 owner, 2 how many undelivered are kept, then per event: run, sink, fence, id among the undelivered,
--       why it was given up or '', '1' if the holder has read no more, initial refusals of the next event
-- returns, per event: advanced | done (no longer held) | stale
-- @include outbox_entry
local outbox, run_prefix, undelivered = KEYS[1], KEYS[2], KEYS[3]
local owner, most = ARGV[1], ARGV[2]
local STRIDE = 7

local function note_again(id, why)
  local parts = {}
  for name, value in pairs(read_undelivered(undelivered, id) or {}) do
    parts[#parts + 1] = name
    parts[#parts + 1] = name == 'error' and why or value
  end
  if parts[1] then redis.call('XADD', undelivered, 'MAXLEN', '~', most, '*', unpack(parts)) end
end

local function release(state, field, entry, run, sink)
  local departed = state ~= run_prefix .. run
  if departed and redis.call('EXISTS', redeliveries_of(outbox, sink, run)) == 0 then
    redis.call('HDEL', state, field)
    redis.call('ZREM', entries_of(outbox, sink), run)
    return
  end
  entry.owner = '-'
  write_entry(state, field, entry)
  redis.call('ZADD', entries_of(outbox, sink), 0, run)
end

local function advance(at)
  local run, sink, fence, id = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  local why, last, refusals = ARGV[at + 4], ARGV[at + 5] == '1', tonumber(ARGV[at + 6])
  local state, field = state_of(outbox, run_prefix, sink, run)
  if redis.call('HEXISTS', state, field) == 0 then return 'stale' end
  local entry = read_entry(state, field)
  if entry.fence ~= fence or entry.owner ~= owner then return 'stale' end -- guard: redelivered-fence
  if redis.call('ZREM', redeliveries_of(outbox, sink, run), id) == 1 then
    if why ~= '' then
      note_again(id, why)
    else
      entry.tries, entry.since = 0, 0
    end
    redis.call('XDEL', undelivered, id)
    entry.refusals = refusals
  end
  if last then
    release(state, field, entry, run, sink)
    return 'done'
  end
  write_entry(state, field, entry)
  return 'advanced'
end

local words = {}
for at = 3, #ARGV, STRIDE do words[#words + 1] = advance(at) end
return words
