-- The place of an entry: one of the lanes, which are KEYS 1 to 4, and a stream id. A record with any other value is damaged, and a
-- command that uses it would fail the whole script, or write a key that no process reads.
local is_lane = {}
for i = 1, 4 do is_lane[KEYS[i]] = true end

local MOST = '18446744073709551615'
local function is_id_number(digits) return #digits < #MOST or #digits == #MOST and digits <= MOST end

local function is_place(lane, entry)
  if not is_lane[lane] then return false end -- guard: entry-known-lane
  local ms, seq = (entry or ''):match('^(%d+)%-(%d+)$')
  return ms ~= nil and is_id_number(ms) and is_id_number(seq)
end
