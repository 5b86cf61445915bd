-- Count schedules, cheaply enough for every cycle.
-- KEYS  1 waiting (zset), 2 working (zset), 3 definitions (hash)
-- ARGV  1 how many of `working` to look up in `waiting`
-- returns { now, registered, waiting, working, due, earliest score or '', how many of the sample are in both sets }
-- @include state
local waiting, working, definitions = KEYS[1], KEYS[2], KEYS[3]

local now = as_score(now_us() / 1000000)
local overlapping = 0
local sample = redis.call('ZRANGE', working, 0, tonumber(ARGV[1]) - 1)
if #sample > 0 then
  for _, score in ipairs(redis.call('ZMSCORE', waiting, unpack(sample))) do
    if score then overlapping = overlapping + 1 end
  end
end
return {
  now, redis.call('HLEN', definitions), redis.call('ZCARD', waiting), redis.call('ZCARD', working),
  redis.call('ZCOUNT', waiting, '-inf', now), redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or '', overlapping,
}
