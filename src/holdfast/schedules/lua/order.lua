-- Priority with ageing: a class above or below the normal one is worth some seconds of waiting, no more, so nothing starves.
-- `waiting` keeps the plain time; only those that are not normal are in `priorities`.
local NORMAL = 5
local URGENT_MOST = 200

local function in_order(candidates, priorities, worth)
  if #candidates == 0 or redis.call('EXISTS', priorities) == 0 then return candidates end
  local names = {}
  for i, candidate in ipairs(candidates) do names[i] = candidate.name end
  for i, class in ipairs(redis.call('ZMSCORE', priorities, unpack(names))) do
    local candidate = candidates[i]
    candidate.rank = candidate.at + ((tonumber(class or NORMAL)) - NORMAL) * worth -- guard: priority-ages
  end
  table.sort(candidates, function(a, b)
    if a.rank ~= b.rank then return a.rank < b.rank end
    return a.name < b.name
  end)
  return candidates
end

-- Urgent ones that are due, also if thousands of others have waited longer.
local function urgent_due(waiting, priorities, now, known, candidates)
  local names = redis.call('ZRANGEBYSCORE', priorities, '-inf', '(' .. NORMAL, 'LIMIT', 0, URGENT_MOST)
  if #names == 0 then return end
  for i, score in ipairs(redis.call('ZMSCORE', waiting, unpack(names))) do
    local at = tonumber(score)
    if at and at <= now and not known[names[i]] then
      candidates[#candidates + 1] = { name = names[i], score = score, at = at }
    end
  end
end
