-- A run's first attempt is not written down: whatever has begun has had one. Every field that a claim writes costs it.
local function attempt_of(fence, attempt)
  return tonumber(attempt or nil) or ((tonumber(fence or nil) or 0) > 0 and 1 or 0)
end
