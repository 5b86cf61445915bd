-- What is counted is written in digits. Anything else was written by somebody else, and the counting begins anew: as a number it
-- could be none at all (nan), or more than can be counted on from.
local function is_count(text) return text and #text <= 16 and text:find('^%d+$') ~= nil end
local function counted(text) return is_count(text) and tonumber(text) or 0 end -- guard: damaged-count

-- A run's first attempt is not written down: whatever has begun has had one. Every field that a claim writes costs it.
local function attempt_of(fence, attempt)
  if is_count(attempt) then return tonumber(attempt) end
  return counted(fence) > 0 and 1 or 0
end
