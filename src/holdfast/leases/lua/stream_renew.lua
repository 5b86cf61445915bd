-- Renew many stream leases in one call, each only for the owner and fence that hold it.
-- KEYS  1-4 lanes (streams), 5 run prefix
-- ARGV  1 group, 2 owner, then per lease: run id, fence
-- returns, per lease: kept | lost | stop (kept, and a cancellation was requested)
local run_prefix = KEYS[5]
local group, owner = ARGV[1], ARGV[2]

local function renew(record, fence)
  -- A record that was overwritten is not held: it must not fail the renewal of the others.
  local have = redis.pcall('HMGET', record, 'owner', 'fence', 'lane', 'entry', 'cancel') -- guard: run-renew-damaged-record
  if have[1] ~= owner or have[2] ~= fence then return 'lost' end -- guard: run-renew-fence
  local lane, entry = have[3], have[4]
  -- XCLAIM by a former owner would silently take the entry back, so the present owner is checked first.
  -- In a group that was deleted by hand no entry is held: XPENDING returns an error.
  if #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) ~= 1 then return 'lost' end -- guard: run-renew-pending
  redis.call('XCLAIM', lane, group, owner, 0, entry, 'IDLE', 0, 'JUSTID')
  return have[5] and 'stop' or 'kept'
end

local standings = {}
for i = 3, #ARGV, 2 do standings[#standings + 1] = renew(run_prefix .. ARGV[i], ARGV[i + 1]) end
return standings
