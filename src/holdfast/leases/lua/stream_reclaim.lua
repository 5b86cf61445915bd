-- Reclaim entries from owners that stopped renewing, under a higher fence, and queue them to be served first.
-- KEYS  1-4 lanes (streams; the first is served first), 5 run prefix, 6 turn (string)
-- ARGV  1 group, 2 ttl ms, 3 how many at most, 4 turn ms (calls of others do nothing for that long; 0 = always read)
-- returns { how many entries were read, the ids of the reclaimed records … }
-- @include entry
local returned, run_prefix, turn = KEYS[1], KEYS[5], KEYS[6]
local group, ttl, limit, turn_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if turn_ms > 0 and not redis.call('SET', turn, '1', 'NX', 'PX', turn_ms) then return { 0 } end

local seen, taken = 0, {}
for i = 1, 4 do
  local lane, room = KEYS[i], limit - seen
  if room > 0 then
    for _, pending in ipairs(redis.call('XPENDING', lane, group, 'IDLE', ttl, '-', '+', room)) do
      seen = seen + 1
      taken[#taken + 1] = return_entry(lane, group, pending[1], returned, run_prefix, 'reclaimed', pending[2], 0)
    end
  end
end
return { seen, unpack(taken) }
