-- Forget what is kept for dead letters that are gone: somebody deleted or trimmed them by hand.
-- KEYS  1 letters (hash), 2 dead letters (stream)
-- ARGV  letter ids
-- returns how many were forgotten
local letters, deadletter = KEYS[1], KEYS[2]

local forgotten = 0
for _, letter in ipairs(ARGV) do
  -- What is no stream's id names no letter either.
  local found = redis.pcall('XRANGE', deadletter, letter, letter)
  if found.err or #found == 0 then
    forgotten = forgotten + redis.call('HDEL', letters, letter)
  end
end
return forgotten
