-- Compare definitions by their digests, so that only those that differ need to be sent.
-- KEYS  1 definitions (hash)
-- ARGV  per schedule: name, SHA-1 of its definition (hex)
-- returns the places (from 0) of those that are missing or different here
local definitions = KEYS[1]

local differing = {}
for i = 1, #ARGV, 2 do
  local here = redis.call('HGET', definitions, ARGV[i])
  if not here or redis.sha1hex(here) ~= ARGV[i + 1] then differing[#differing + 1] = (i - 1) / 2 end
end
return differing
