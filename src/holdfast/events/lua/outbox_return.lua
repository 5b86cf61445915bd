-- Let go of lines until they are due again; only their present holder can.
-- KEYS  1 outbox (its lines are `<outbox>:<sink>`, zsets), 2 run prefix
-- ARGV  1 owner, then per line: run, sink, fence, pause ms, why (failed | refused: the event is at fault |
--       rejected: the receiver does not take events | released)
-- returns, per line: returned | stale
-- @include clock
-- @include line
local outbox, run_prefix = KEYS[1], KEYS[2]
local owner = ARGV[1]
local STRIDE = 5
local REJECTED = 1000 -- added to the count while it counts rejections: a change of kind begins anew

local now, due = now_ms(), false

local function put_back(at)
  local run, sink, fence, pause, why = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  local state, field = state_of(outbox, run_prefix, sink, run)
  if redis.call('HEXISTS', state, field) == 0 then return 'stale' end
  local line = read_line(state, field)
  if line.fence ~= fence or (line.owner ~= owner and line.owner ~= '-') then return 'stale' end
  if line.owner == '-' then return 'returned' end
  line.owner = '-'
  if why ~= 'released' then
    line.tries = line.tries + 1
    if line.since == 0 then line.since = now end
  end
  if why == 'refused' then line.refusals = (line.refusals < REJECTED and line.refusals or 0) + 1 end
  if why == 'rejected' then line.refusals = math.max(line.refusals, REJECTED) + 1 end
  write_line(state, field, line)
  redis.call('ZADD', lines_of(outbox, sink), now + pause, run)
  due = due or pause == 0
  return 'returned'
end

local words = {}
for at = 2, #ARGV, STRIDE do words[#words + 1] = put_back(at) end
if due then redis.pcall('PUBLISH', outbox .. ':notify', 'returned') end -- a holder that stops leaves its lines to others
return words
