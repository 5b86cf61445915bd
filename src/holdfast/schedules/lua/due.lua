-- Look at a page of what is due, by rank, for a scheduler that takes only some of it; nothing is promised by looking.
-- KEYS  1 waiting (zset), 2 priorities (zset)
-- ARGV  1 rank to begin at, 2 page size
-- returns { how many are due, urgent ones (first page only), then the page's names } as { n, { … }, { … } }
-- @include state
-- @include order
local waiting, priorities = KEYS[1], KEYS[2]
local from, size = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = now_us() / 1000000
local due = redis.call('ZCOUNT', waiting, '-inf', as_score(now))
local urgent = {}
if from == 0 then
  local found = {}
  urgent_due(waiting, priorities, now, {}, found)
  for i, candidate in ipairs(found) do urgent[i] = candidate.name end
end
local last = math.min(from + size, due) - 1
return { due, urgent, last >= from and redis.call('ZRANGE', waiting, from, last) or {} }
