-- Hand back the pending entries of a consumer whose runs its worker does not perform: the reply of their claim was lost.
-- KEYS  1-4 lanes (streams; the first is served first), 5 run prefix
-- ARGV  1 group, 2 owner, then the ids of the runs that the worker performs
-- returns { entries returned, events appended }
-- @include entry
local returned, run_prefix = KEYS[1], KEYS[5]
local group, owner = ARGV[1], ARGV[2]
local PAGE = 500

local attended = {}
for i = 3, #ARGV do attended[ARGV[i]] = true end

local count, events = 0, 0
for i = 1, 4 do
  local lane, from = KEYS[i], '-'
  repeat
    local page = pending_page(lane, group, from, PAGE, owner)
    for _, pending in ipairs(page) do
      local entry = pending[1]
      from = '(' .. entry
      local found = redis.call('XRANGE', lane, entry, entry)[1]
      local id = found and valid_id(given_id(entry_fields(found[2]), entry), entry)
      if not id or not attended[id] then
        local _, has_event = return_entry(lane, group, entry, returned, run_prefix, 'handed_back', owner, 1)
        count = count + 1
        if has_event then events = events + 1 end
      end
    end
  until #page < PAGE
end
return { count, events }
