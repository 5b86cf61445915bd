-- Announce a number of partitions, forget larger numbers that were not announced for a time, and return the largest.
-- KEYS  1 partitions (zset of numbers, by the ms of their last announcement)
-- ARGV  1 number to announce, or 0 for none, 2 numbers above this one may be forgotten, or 0 to forget none,
--       3 after how many ms without an announcement
-- returns the largest announced number, or 0
-- @include clock
local partitions = KEYS[1]
local own, most, forget_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local MOST = 64

local now = (own > 1 or most > 0) and now_ms() or 0
if own > 1 then redis.call('ZADD', partitions, now, own) end
local greatest = 0
local announced = redis.call('ZRANGE', partitions, 0, -1, 'WITHSCORES')
for i = 1, #announced, 2 do
  local number, at = tonumber(announced[i]) or 0, tonumber(announced[i + 1])
  -- The key may have been overwritten by hand.
  if not (number >= 1 and number <= MOST) then number = 0 end
  if most > 0 and number > most and now - at > forget_ms then
    redis.call('ZREM', partitions, announced[i])
  else
    greatest = math.max(greatest, number)
  end
end
return greatest
