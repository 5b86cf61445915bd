-- Say how many partitions we count on, forget the numbers above ours that nobody says any more, and tell the greatest.
-- KEYS  1 partitions (zset of numbers, by when one was last said in ms)
-- ARGV  1 how many we count on, or 0 to say nothing, 2 numbers above this one may be forgotten, or 0 to forget none,
--       3 after how many ms without a word
-- returns the greatest number that is known, or 0
-- @include clock
local partitions = KEYS[1]
local own, most, patience = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local MOST = 64

local now = (own > 1 or most > 0) and now_ms() or 0
if own > 1 then redis.call('ZADD', partitions, now, own) end
local greatest = 0
local said = redis.call('ZRANGE', partitions, 0, -1, 'WITHSCORES')
for i = 1, #said, 2 do
  local number, at = tonumber(said[i]) or 0, tonumber(said[i + 1])
  -- Anybody can write anything there.
  if not (number >= 1 and number <= MOST) then number = 0 end
  if most > 0 and number > most and now - at > patience then
    redis.call('ZREM', partitions, said[i])
  else
    greatest = math.max(greatest, number)
  end
end
return greatest
