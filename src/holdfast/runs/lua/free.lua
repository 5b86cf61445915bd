-- Free permits whose run does not exist any more or has ended, and admit the next waiting runs: a record was deleted by hand, or a
-- failover lost the end of a run.
-- KEYS  1 limits (set), 2 returned lane (stream), 3 run prefix
-- ARGV  names of limits
-- returns how many permits were freed
-- @include clock
-- @include limits
-- @include record
local limits, returned, run_prefix = KEYS[1], KEYS[2], KEYS[3]
local ENDED = { succeeded = true, failed = true, timed_out = true, cancelled = true }

local now, freed = now_ms(), 0
for _, name in ipairs(ARGV) do
  local holding = holding_of(limits, name)
  for _, id in ipairs(redis.call('ZRANGE', holding, 0, -1)) do
    local status = read_fields(run_prefix .. id, 'status')[1]
    if not status or ENDED[status] then
      redis.call('ZREM', holding, id)
      admit(limits, name, returned, run_prefix, now)
      freed = freed + 1
    end
  end
  if redis.call('EXISTS', holding) == 0 then admit(limits, name, returned, run_prefix, now) end
end
return freed
