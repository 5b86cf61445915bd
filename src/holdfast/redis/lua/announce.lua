-- Write or refresh the heartbeat record of a process; it never exists without a ttl.
-- KEYS  1 member (hash with ttl)
-- ARGV  1 ttl ms, 2 start time of the process that may have the record ('' for any process), then field, value, …
-- returns Redis TIME in ms, or 0 if another process has the name now
-- @include clock
local member, ours = KEYS[1], ARGV[2]

local theirs = ours ~= '' and redis.call('HGET', member, 'since')
if theirs and theirs ~= ours then return 0 end -- guard: member-name-taken
redis.call('DEL', member)
redis.call('HSET', member, unpack(ARGV, 3))
redis.call('PEXPIRE', member, ARGV[1])
return now_ms()
