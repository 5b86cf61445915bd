-- Keep many stream leases alive in one call, each only for the owner and fence that hold it.
-- KEYS  1-4 lanes (streams), 5 run prefix
-- ARGV  1 group, 2 owner, then per lease: run id, fence
-- returns, per lease: kept | lost | stop (kept, and somebody asked for a cancel)
-- @include held
local run_prefix = KEYS[5]
local group, owner = ARGV[1], ARGV[2]

local standings = {}
for i = 3, #ARGV, 2 do
  local record = run_prefix .. ARGV[i]
  local standing = 'lost'
  if held(record, owner, ARGV[i + 1]) then
    local have = redis.call('HMGET', record, 'lane', 'entry', 'cancel')
    local lane, entry = have[1], have[2]
    -- XCLAIM by a former owner would silently steal the entry back, so its present owner is asked first.
    if #redis.call('XPENDING', lane, group, entry, entry, 1, owner) == 1 then
      redis.call('XCLAIM', lane, group, owner, 0, entry, 'IDLE', 0, 'JUSTID')
      standing = have[3] and 'stop' or 'kept'
    end
  end
  standings[#standings + 1] = standing
end
return standings
