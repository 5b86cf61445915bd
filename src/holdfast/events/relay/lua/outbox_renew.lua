-- Renew the leases of entries that are held under this owner and fence.
-- KEYS  1 outbox (its entries are `<outbox>:<sink>`, zsets), 2 run prefix
-- ARGV  1 owner, 2 ttl ms, then per entry: run, sink, fence
-- returns, per entry: kept | released (by its holder, which may not have received the reply yet) | lost
-- @include clock
-- @include outbox_entry
local outbox, run_prefix = KEYS[1], KEYS[2]
local owner, ttl = ARGV[1], tonumber(ARGV[2])

local now, words = now_ms(), {}
for i = 3, #ARGV, 3 do
  local run, sink = ARGV[i], ARGV[i + 1]
  local state, field = state_of(outbox, run_prefix, sink, run)
  local word = 'lost'
  if redis.call('HEXISTS', state, field) == 1 then
    local entry = read_entry(state, field)
    local same = entry.fence == tonumber(ARGV[i + 2])
    if entry.owner == owner and same then
      redis.call('ZADD', entries_of(outbox, sink), now + ttl, run)
      word = 'kept'
    elseif entry.owner == '-' and same then
      word = 'released'
    end
  end
  words[#words + 1] = word
end
return words
