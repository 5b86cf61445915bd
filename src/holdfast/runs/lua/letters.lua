-- Delete the replay data of dead letters that were deleted or trimmed by hand.
-- KEYS  1 letters (hash), 2 dead letters (stream)
-- ARGV  letter ids
-- returns how many were deleted
local letters, deadletter = KEYS[1], KEYS[2]

local deleted = 0
for _, letter in ipairs(ARGV) do
  -- A field that is not a stream id has no letter either.
  local found = redis.pcall('XRANGE', deadletter, letter, letter)
  if found.err or #found == 0 then
    deleted = deleted + redis.call('HDEL', letters, letter)
  end
end
return deleted
