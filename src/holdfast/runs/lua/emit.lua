-- Append events of running agents, each only under the current fence of its run, and once even after a lost reply.
-- KEYS  1 run prefix
-- ARGV  1 owner, then per event: run id, fence, number (growing), type, data (JSON)
-- returns, per event: its id | already | stale
-- @include attempt
-- @include feed
-- @include record
local run_prefix = KEYS[1]
local owner = ARGV[1]

local words = {}
for at = 2, #ARGV, 5 do
  local record = run_prefix .. ARGV[at]
  local number = tonumber(ARGV[at + 2])
  local have = read_fields(record, 'owner', 'fence', 'emitted') -- guard: emit-damaged-record
  local word = 'stale'
  if have[1] == owner and have[2] == ARGV[at + 1] then -- guard: emit-fence
    word = 'already'
    if number > counted(have[3]) then -- guard: emit-once
      redis.call('HSET', record, 'emitted', ARGV[at + 2])
      word = append_event(record, ARGV[at + 3], ARGV[at + 4])
      publish_event(record, word, ARGV[at + 3], ARGV[at + 4])
    end
  end
  words[#words + 1] = word
end
return words
