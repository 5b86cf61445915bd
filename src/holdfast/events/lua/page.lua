-- Read events of a feed after one of them: as many as are wanted and fit into some bytes, at least one.
-- KEYS  1 feed (stream)
-- ARGV  1 the id to begin after, 2 how many at most, 3 bytes after which no more are taken
-- returns {1 if there may be more, else 0; {id, {field, value, …}} per event}
local feed = KEYS[1]
local start, most, budget = '(' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- A few at a time: what is read beyond the budget was read in vain.
local step = 16

local page, size, more = {}, 0, 1
while #page < most and size < budget do
  local wanted = math.min(step, most - #page)
  local entries = redis.call('XRANGE', feed, start, '+', 'COUNT', wanted)
  for _, entry in ipairs(entries) do
    if size >= budget then
      break
    end
    for _, part in ipairs(entry[2]) do
      size = size + #part
    end
    page[#page + 1] = entry
    start = '(' .. entry[1]
  end
  if #entries < wanted and size < budget then
    more = 0
    break
  end
end
return {more, page}
