-- Priority with ageing: a class above or below the normal one is worth some seconds of waiting, no more, so nothing starves.
-- `waiting` keeps the plain time; only those that are not normal are in `priorities`.
local NORMAL = 5
local URGENT_MOST = 200

local function in_order(candidates)
  table.sort(candidates, function(a, b)
    if a.rank ~= b.rank then return a.rank < b.rank end
    return a.name < b.name
  end)
  return candidates
end

-- A page of what is due, by time: name, score, name, score, …
local function page_due(waiting, now_score, from, size)
  return redis.call('ZRANGEBYSCORE', waiting, '-inf', now_score, 'WITHSCORES', 'LIMIT', from, size) -- guard: acquire-due-only
end

-- Add a page to the candidates, at most `most` of each class, which go by their time.
local function add_ranked(page, priorities, worth, most, of_class, candidates)
  local names = {}
  for i = 1, #page, 2 do names[#names + 1] = page[i] end
  if #names == 0 then return end
  for i, class in ipairs(redis.call('ZMSCORE', priorities, unpack(names))) do
    class = tonumber(class or NORMAL)
    local count = (of_class[class] or 0) + 1
    of_class[class] = count
    if count <= most then
      local score = page[2 * i]
      local at = tonumber(score)
      local rank = at + (class - NORMAL) * worth -- guard: priority-ages
      candidates[#candidates + 1] = { name = names[i], score = score, at = at, rank = rank }
    end
  end
end

-- Urgent ones that are due, also if thousands of others have waited longer.
local function urgent_due(waiting, priorities, now, known)
  local found = {}
  local names = redis.call('ZRANGEBYSCORE', priorities, '-inf', '(' .. NORMAL, 'LIMIT', 0, URGENT_MOST)
  if #names == 0 then return found end
  for i, score in ipairs(redis.call('ZMSCORE', waiting, unpack(names))) do
    local at = tonumber(score)
    if at and at <= now and not known[names[i]] then
      found[#found + 1] = names[i]
      found[#found + 1] = score
    end
  end
  return found
end
