-- The history of a schedule: its last turns as JSON, the newest first, in one list of bounded length. Needs `state` and `turns`.
-- Only the script that ends a turn adds it, after the fence was compared: a refused end is not in the history.

-- kept 0 = no history. A turn that is a schedule of its own is in the history of its schedule. A list may grow a quarter longer
-- before it is cut to what is kept: to cut it at every end would double the cost.
local function add_to_history(prefix, of, kept, turn)
  local history = prefix .. of .. '#history'
  if kept < 1 then return redis.call('DEL', history) end
  local length = call_sound('LPUSH', history, turn)
  -- guard: turn-history-bounded
  if length > kept + math.floor(kept / 4) then redis.call('LTRIM', history, 0, kept - 1) end
end

-- What Redis knows of a turn, before what its scheduler has sent: a JSON object with at least one field. The owner is JSON, too.
local function ended_turn(now, owner, fence, rest)
  return '{"ended_at":' .. now .. ',"owner":' .. owner .. ',"fence":' .. fence .. ',' .. rest:sub(2)
end
