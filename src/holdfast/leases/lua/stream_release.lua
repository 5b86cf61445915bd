-- Hand leased entries back, so that the next free worker starts them at once; no attempt is counted.
-- KEYS  1-4 lanes (streams; the first is served first), 5 run prefix
-- ARGV  1 group, 2 owner, then per lease: run id, fence
-- returns, per lease: released | stale
-- @include held
-- @include entry
local returned, run_prefix = KEYS[1], KEYS[5]
local group, owner = ARGV[1], ARGV[2]

local words = {}
for i = 3, #ARGV, 2 do
  local record = run_prefix .. ARGV[i]
  local word = 'stale'
  if held(record, owner, ARGV[i + 1]) then
    local have = redis.call('HMGET', record, 'lane', 'entry')
    if return_entry(have[1], group, have[2], returned, run_prefix, 'handed_back', owner, 1) then word = 'released' end
  end
  words[#words + 1] = word
end
return words
