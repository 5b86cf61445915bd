-- Look at a page of what is due, by time, for a scheduler that takes only some of it; nothing is promised by looking.
-- KEYS  1 waiting (zset), 2 priorities (zset)
-- ARGV  1 rank to begin at, 2 page size, 3 seconds that a class of priority is worth
-- returns { now, how many are due, how many are on the page, then per name: name, its time, the time it is ordered by };
--         the page comes first, then, with the first page, urgent ones from behind it
-- @include state
-- @include order
local waiting, priorities = KEYS[1], KEYS[2]
local from, size, worth = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local now = now_us() / 1000000
local now_score = as_score(now)
local page = page_due(waiting, now_score, from, size)
local candidates = {}
add_ranked(page, priorities, worth, math.huge, {}, candidates)
if from == 0 then
  local known = {}
  for _, candidate in ipairs(candidates) do known[candidate.name] = true end
  add_ranked(urgent_due(waiting, priorities, now, known), priorities, worth, math.huge, {}, candidates)
end
local reply = { now_score, redis.call('ZCOUNT', waiting, '-inf', now_score), #page / 2 }
for _, candidate in ipairs(candidates) do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = candidate.name, candidate.score, as_score(candidate.rank)
end
return reply
