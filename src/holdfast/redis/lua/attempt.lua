-- A stored count is 1 to 16 digits. Any other value was written by hand and is read as 0: it could be nan, or too large to
-- increment.
local function is_count(text) return text and #text <= 16 and text:find('^%d+$') ~= nil end
local function counted(text) return is_count(text) and tonumber(text) or 0 end -- guard: damaged-count

-- The first attempt of a run is not stored, as each field that a claim writes costs time: a run with a fence has had it.
local function attempt_of(fence, attempt)
  if is_count(attempt) then return tonumber(attempt) end
  return counted(fence) > 0 and 1 or 0
end
