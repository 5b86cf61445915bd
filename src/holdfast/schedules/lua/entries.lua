-- Read schedules: where each is and what its record says.
-- KEYS  1 waiting (zset), 2 working (zset), 3 leases (zset), 4 definitions (hash), 5 priorities (zset), 6 record prefix
-- ARGV  names
-- returns, per schedule: { spec or '', next run or '', deadline or '', lease expiry or '', priority or '', field, value, … }
local waiting, working, leases, definitions, priorities, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

local reply = {}
for i, name in ipairs(ARGV) do
  local row = {
    redis.call('HGET', definitions, name) or '', redis.call('ZSCORE', waiting, name) or '',
    redis.call('ZSCORE', working, name) or '', redis.call('ZSCORE', leases, name) or '',
    redis.call('ZSCORE', priorities, name) or '',
  }
  local record = redis.pcall('HGETALL', prefix .. name)
  if not record.err then
    for j = 1, #record do row[5 + j] = record[j] end
  end
  reply[i] = row
end
return reply
