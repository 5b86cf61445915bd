-- Record that an agent runs on its host, with its location.
-- KEYS  as in agents
-- ARGV  1 host, 2 address, 3 ttl ms, 4 id, 5 fence, 6 pid
-- returns kept | lost (another host has it by now) | unwanted (it was stopped meanwhile)
-- @include agents
local host, address, ttl, id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local record, now = record_prefix .. id, now_ms()

local have = redis.call('HMGET', record, 'owner', 'fence', 'wanted')
if have[1] ~= host or have[2] ~= ARGV[5] then return 'lost' end -- guard: agent-started-fence
if have[3] ~= '1' then return 'unwanted' end -- guard: agent-started-unwanted
redis.call('HSET', record, 'status', 'running', 'pid', ARGV[6], 'started_at', now)
redis.call('ZADD', leases, now + ttl, id)
be_at(id, host, address, ttl)
return 'kept'
