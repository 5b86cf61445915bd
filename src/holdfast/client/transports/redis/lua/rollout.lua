-- Change a roll-out and return what it is then: one script, so that two who change it at once lose nothing of each other's.
-- KEYS  1 roll-out (hash)
-- ARGV  1 percent ('' leaves it), 2 reason ('' leaves it if the percentage stays),
--       then per tenant: its field (tenant:<id>), 'on', 'off' or '' (as the percentage says)
-- returns the hash's fields and values
-- @include clock
local flag = KEYS[1]
local percent, reason = ARGV[1], ARGV[2]
local FIRST_TENANT = 3

if percent ~= '' then redis.call('HSET', flag, 'percent', percent) end
if percent ~= '' or reason ~= '' then redis.call('HSET', flag, 'reason', reason) end
redis.call('HSET', flag, 'changed_at', string.format('%d', now_ms()))
for i = FIRST_TENANT, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', flag, ARGV[i])
  else
    redis.call('HSET', flag, ARGV[i], ARGV[i + 1])
  end
end
return redis.call('HGETALL', flag)
