-- Keep lines for the owner and fence that hold them.
-- KEYS  1 outbox (its lines are `<outbox>:<sink>`, zsets), 2 run prefix
-- ARGV  1 owner, 2 ttl ms, then per line: run, sink, fence
-- returns, per line: kept | released (its holder has let go of it, and may not have heard of that yet) | lost
-- @include clock
-- @include line
local outbox, run_prefix = KEYS[1], KEYS[2]
local owner, ttl = ARGV[1], tonumber(ARGV[2])

local now, words = now_ms(), {}
for i = 3, #ARGV, 3 do
  local run, sink = ARGV[i], ARGV[i + 1]
  local state, field = state_of(outbox, run_prefix, sink, run)
  local word = 'lost'
  if redis.call('HEXISTS', state, field) == 1 then
    local line = read_line(state, field)
    local same = line.fence == tonumber(ARGV[i + 2])
    if line.owner == owner and same then
      redis.call('ZADD', lines_of(outbox, sink), now + ttl, run)
      word = 'kept'
    elseif line.owner == '-' and same then
      word = 'released'
    end
  end
  words[#words + 1] = word
end
return words
