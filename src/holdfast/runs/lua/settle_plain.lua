-- Settle successful attempts of runs without optional fields, which most are. Each kind of write is made for all of them before the
-- next kind, as in claim_plain.lua. settle_one.lua writes the same for the same run.
-- Returns the positions in ARGV of the runs that need settle_one.
local function settle_plain(first, last, stride, field, lane, fence, with_data)
  local records, place_of, n, others = {}, {}, 0, {}
  for at = first, last, stride do
    local record = run_prefix .. ARGV[at]
    local have = try('HMGET', record, 'owner', 'fence')
    if have[1] == owner and have[2] == fence and not place_of[record] then -- guard: settle-together
      n = n + 1
      records[n], place_of[record] = record, at
    else
      others[#others + 1] = at
    end
  end
  local entries, opening = list_of(deletes and done or kept, lane), '{"' .. field .. '":'
  for i = 1, n do
    local record = records[i]
    local at = place_of[record]
    local data = with_data and ARGV[at + 3] or opening .. ARGV[at + 2] .. '}'
    local event = try('XADD', record .. ':events', '*', 'type', 'succeeded', 'data', data)
    if event.err then -- guard: finished-event-retry
      others[#others + 1], records[i] = at, false
    else
      entries[#entries + 1], batched[#batched + 1] = ARGV[at + 1], ARGV[at]
      if not followed or followed[record] then publish_event(record, event, 'succeeded', data) end
    end
  end
  for i = 1, n do
    local record = records[i]
    if record then end_record(record, 'succeeded', field, ARGV[place_of[record] + 2]) end -- guard: plain-run-ended
  end
  -- guard: settle-in-order
  table.sort(others) -- if a run is in the batch twice, its first settlement counts
  return others
end
