-- Read events of feeds, each after a given id: up to a number per feed and a size over all feeds, at least one event.
-- KEYS  feeds (streams)
-- ARGV  1 how many of one feed at most, 2 bytes after which no more are read, then per feed: the id to begin after
-- returns, per feed until the bytes are used up: {1 if there may be more, else 0; {id, {field, value, …}} per event}
local most, budget = tonumber(ARGV[1]), tonumber(ARGV[2])
-- Events are read a few at a time: those beyond the budget would be read in vain.
local STEP = 16

local size = 0
local function page_of(feed, after)
  local start, page = '(' .. after, {}
  while #page < most and size < budget do
    local wanted = math.min(STEP, most - #page)
    local entries = redis.call('XRANGE', feed, start, '+', 'COUNT', wanted)
    for _, entry in ipairs(entries) do
      if size >= budget then
        return {1, page}
      end
      for _, part in ipairs(entry[2]) do
        size = size + #part
      end
      page[#page + 1] = entry
      start = '(' .. entry[1]
    end
    if #entries < wanted then
      return {0, page}
    end
  end
  return {1, page}
end

local pages = {}
for i, feed in ipairs(KEYS) do
  if size >= budget then
    break
  end
  pages[i] = page_of(feed, ARGV[i + 2])
end
return pages
