-- Remove registered agents that were not renewed: their location has expired, the other keys are removed here.
-- KEYS  as in agents
-- ARGV  1 at most, 2 ms for which the record of one that ends stays
-- returns how many
-- @include agents
local count = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms(), 'LIMIT', 0, tonumber(ARGV[1]))) do
  local have = redis.call('HMGET', record_prefix .. id, 'entry', 'owner')
  if have[1] == '' then
    leave_host(id, have[2])
    forget(id, 'stopped', tonumber(ARGV[2]))
    count = count + 1
  end
end
return count
