-- Remove a consumer: its pending entries are returned to the queue before it is deleted.
-- XGROUP DELCONSUMER alone would lose its pending entries: no read and no claim would ever return them.
-- KEYS  1-4 lanes (streams; the first is served first), 5 run prefix
-- ARGV  1 group, 2 consumer, 3 min idle ms (an entry renewed since then: busy, nothing is changed), 4 '1' if its own process leaves,
--       5 '1' for a dry run
-- returns { gone | busy | would, entries returned (or that would be), events appended }
-- @include entry
local returned, run_prefix = KEYS[1], KEYS[5]
local group, consumer, min_idle = ARGV[1], ARGV[2], tonumber(ARGV[3])
local leaving, dry_run = ARGV[4] == '1', ARGV[5] == '1'
local PAGE = 500

local count = 0
for i = 1, 4 do
  local from = '-'
  repeat
    local page = pending_page(KEYS[i], group, from, PAGE, consumer)
    for _, pending in ipairs(page) do
      if pending[3] < min_idle then return { 'busy', 0, 0 } end
      from = '(' .. pending[1]
    end
    count = count + #page
  until #page < PAGE
end
if dry_run then return { 'would', count, 0 } end
local event, attempt_back, events = leaving and 'handed_back' or 'reclaimed', leaving and 1 or 0, 0

for i = 1, 4 do
  local lane = KEYS[i]
  local page -- guard: evict-keeps-pending
  repeat
    page = pending_page(lane, group, '-', PAGE, consumer)
    for _, pending in ipairs(page) do
      local _, appended = return_entry(lane, group, pending[1], returned, run_prefix, event, consumer, attempt_back)
      if appended then events = events + 1 end
    end
  until #page == 0
  redis.pcall('XGROUP', 'DELCONSUMER', lane, group, consumer)
end
return { 'gone', count, events }
