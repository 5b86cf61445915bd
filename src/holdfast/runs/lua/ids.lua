-- The order of stream ids. Their two numbers reach 2^64, which Lua's numbers can't represent: they are compared as text.
local function id_before(a, b)
  local a_ms, a_seq = a:match('^(%d+)-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)-(%d+)$')
  local x, y = a_ms, b_ms
  if a_ms == b_ms then x, y = a_seq, b_seq end
  if #x ~= #y then return #x < #y end
  return x < y
end

-- Returns the next id; for an id too large to increment, the id itself: a trim by it keeps one entry more.
local function id_after(id)
  local ms, seq = id:match('^(%d+)-(%d+)$')
  if #seq > 15 then return id end
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end
