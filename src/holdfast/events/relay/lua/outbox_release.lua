-- Release entries until they are due again; only their present holder can do so.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets), 2 run prefix
-- ARGV  1 owner, then per entry: run, sink, fence, pause ms, why (failed | refused: the event is at fault |
--       rejected: the receiver does not take events | released)
-- returns, per entry: released | stale
-- @include clock
-- @include outbox_entry
local outbox, run_prefix = KEYS[1], KEYS[2]
local owner = ARGV[1]
local STRIDE = 5
local REJECTED = 1000 -- added to a count of rejections, to distinguish it from refusals: the other kind starts at one

local now, due = now_ms(), false

local function release(at)
  local run, sink, fence, pause, why = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  local state, field = state_of(outbox, run_prefix, sink, run)
  if redis.call('HEXISTS', state, field) == 0 then return 'stale' end
  local entry = read_entry(state, field)
  if entry.fence ~= fence or (entry.owner ~= owner and entry.owner ~= '-') then return 'stale' end
  if entry.owner == '-' then return 'released' end
  entry.owner = '-'
  if why ~= 'released' then
    entry.tries = entry.tries + 1
    if entry.since == 0 then entry.since = now end
  end
  if why == 'refused' then entry.refusals = (entry.refusals < REJECTED and entry.refusals or 0) + 1 end
  if why == 'rejected' then entry.refusals = math.max(entry.refusals, REJECTED) + 1 end
  write_entry(state, field, entry)
  redis.call('ZADD', entries_of(outbox, sink), now + pause, run)
  due = due or pause == 0
  return 'released'
end

local words = {}
for at = 2, #ARGV, STRIDE do words[#words + 1] = release(at) end
if due then redis.pcall('PUBLISH', outbox .. ':notify', 'returned') end -- other relays claim the entries of a holder that stops
return words
