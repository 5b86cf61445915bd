-- Count the expired runs of one page of notes. Notes are sorted by their expiry, so a page is found by its rank.
-- KEYS  1 ended (zset)
-- ARGV  1 rank of the first note, 2 how many notes to read
-- returns { expired notes, runs that they name }
-- @include clock
-- @include notes
local ended, from, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])

local now, notes, runs = now_ms(), 0, 0
local page = redis.call('ZRANGE', ended, from, from + most - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  if tonumber(page[i + 1]) > now then break end
  local _, ids = read_note(page[i])
  notes, runs = notes + 1, runs + #ids
end
return { notes, runs }
