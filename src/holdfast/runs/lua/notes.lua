-- Notes of ended runs: a note is one run id, or names all runs that succeeded in one batch (`finished_at id id …`).

-- Returns when the runs of a note ended, or nil if it is a single run id; and the ids.
local function read_note(note)
  local finished_at, names = note:match('^(%d+) (.+)$')
  if not finished_at then return nil, { note } end
  local ids = {}
  for id in names:gmatch('%S+') do ids[#ids + 1] = id end
  return finished_at, ids
end
