-- Store the receivers of runs, once, and make the runs due now.
-- KEYS  1 outbox (zset), 2 run prefix
-- ARGV  per run: id, webhook or '', push (JSON) or ''
-- returns how many of the runs exist
local outbox, run_prefix = KEYS[1], KEYS[2]

local count = 0
for i = 1, #ARGV, 3 do
  local record = run_prefix .. ARGV[i]
  if redis.call('EXISTS', record) == 1 then
    redis.call('HSETNX', record, 'webhook', ARGV[i + 1])
    redis.call('HSETNX', record, 'push', ARGV[i + 2])
    count = count + 1
  end
  redis.call('ZADD', outbox, 0, ARGV[i])
end
redis.pcall('PUBLISH', outbox .. ':notify', 'routed') -- for the other relays, in case the caller dies before its next read
return count
