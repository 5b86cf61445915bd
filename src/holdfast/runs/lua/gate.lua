-- Open, pause or drain a queue, and notify its workers.
-- KEYS  1 gate (hash)
-- ARGV  1 open | paused | draining, 2 reason, 3 control channel
-- returns the mode
-- @include clock
local gate = KEYS[1]
local mode, reason, channel = ARGV[1], ARGV[2], ARGV[3]

redis.call('DEL', gate)
if mode ~= 'open' then redis.call('HSET', gate, 'mode', mode, 'reason', reason, 'since', now_ms()) end
-- guard: gate-publish-optional
redis.pcall('PUBLISH', channel, 'gate') -- a worker that misses the message reads the gate every second
return mode
