-- Hand leased entries back, so that the next free worker starts their runs at once; the attempt is not counted.
-- KEYS  1-4 lanes (streams; the first is served first), 5 run prefix
-- ARGV  1 group, 2 owner, then per lease: run id, fence
-- returns, per lease: released | stale
-- @include entry
-- @include place
local returned, run_prefix = KEYS[1], KEYS[5]
local group, owner = ARGV[1], ARGV[2]

local function release(record, fence)
  local have = redis.pcall('HMGET', record, 'owner', 'fence', 'lane', 'entry') -- guard: run-release-damaged-record
  if have[1] ~= owner or have[2] ~= fence or not is_place(have[3], have[4]) then return 'stale' end -- guard: run-release-fence
  -- guard: run-release-attempt
  return return_entry(have[3], group, have[4], returned, run_prefix, 'handed_back', owner, 1) and 'released' or 'stale'
end

local words = {}
for i = 3, #ARGV, 2 do words[#words + 1] = release(run_prefix .. ARGV[i], ARGV[i + 1]) end
return words
