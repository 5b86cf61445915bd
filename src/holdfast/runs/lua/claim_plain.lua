-- Most runs of a read are plain: they start for the first time and have no optional fields. They are claimed together, all others
-- by claim_one. Both write the same for the same run.
-- @include claim_one

local function is_plain(have, lane, entry, agent)
  -- guard: first-start
  return have[3] == entry and have[2] == lane and have[1] == 'queued' and not have[4] and not have[6] and not limited[agent]
    and agent ~= ''
end

-- Each kind of write is made for all plain runs before the next kind: that takes a tenth less time than run by run (`make bench
-- ARGS=instructions`). Events are appended without append_event, as these runs have no outbox.
local function claim_plain(number, lane, items)
  local records, n = {}, 0
  for i = 1, #items do
    local entry, fields = items[i][1], items[i][2]
    local record = is_ours(fields) and run_prefix .. fields[10] -- guard: entry-written-by-us
    local have = record and look_up(record)
    if have and is_plain(have, lane, entry, fields[4]) then
      n = n + 1
      records[n] = record
      add_claimed(number, 1, 1, fields[4], fields[10], entry, have[5] or '0', fields[2])
    else
      claim_one(number, lane, entry, fields, have)
    end
  end
  for i = 1, n do begin(records[i], '1') end -- guard: plain-run-begun
  local data = started('1', '1')
  for i = 1, n do
    local event = try('XADD', records[i] .. ':events', '*', 'type', 'started', 'data', data)
    if event.err then append_event(records[i], 'started', data, false) end -- guard: started-event-retry
  end
  room = room - n
end
