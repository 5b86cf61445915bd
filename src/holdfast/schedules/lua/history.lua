-- The history of a schedule: its last turns as JSON, the newest first, in one list of bounded length. Needs `state` and `turns`.
-- Only the script that ends a turn adds it, after the fence was compared: a refused end is not in the history.

-- kept 0 = no history. A turn that is a schedule of its own is in the history of its schedule.
local function add_to_history(prefix, of, kept, turn)
  local history = prefix .. of .. '#history'
  if kept < 1 then return redis.call('DEL', history) end
  call_sound('LPUSH', history, turn)
  redis.call('LTRIM', history, 0, kept - 1) -- guard: turn-history-bounded
end

-- What Redis knows of a turn, before what its scheduler has sent: a JSON object with at least one field.
local function ended_turn(now, owner, fence, rest)
  return table.concat({ '{"ended_at":', now, ',"owner":', cjson.encode(owner), ',"fence":', fence, ',', rest:sub(2) })
end
