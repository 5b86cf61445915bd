-- Turns that are schedules of their own: `name#n` beside another turn of `name`, `name@time` of its backfill. Needs `state`.
-- Each is defined like any schedule, so whatever keeps schedules keeps it; its end goes to the account of `name`.

-- The schedule whose turn this is, or nil: no name of a schedule has these signs.
local function schedule_of(name)
  return name:match('^([^#@]+)[#@]')
end

-- What somebody overwrote by another type is thrown away, like a record: it must fail neither a batch nor a request. Every script
-- returns what it threw away, so that its caller tells. Only its first command on a key has to be called like this.
local discarded = {}
local function call_sound(command, key, ...)
  local reply = redis.pcall(command, key, ...) -- guard: backfill-damaged-key
  if type(reply) ~= 'table' or not reply.err then return reply end
  if reply.err:find('WRONGTYPE', 1, true) then
    redis.call('DEL', key)
    discarded[#discarded + 1] = key -- guard: backfill-damage-reported
  end
  return redis.call(command, key, ...)
end

-- Which definitions are turns, so that what tells whether schedules were lost need not count them.
local function note_turn(prefix, name) call_sound('SADD', prefix .. '#turns', name) end
local function forget_turn(prefix, name) call_sound('SREM', prefix .. '#turns', name) end

local function place_turn(waiting, definitions, priorities, prefix, name, turn, streak)
  redis.call('HSET', definitions, name, turn.spec)
  note_turn(prefix, name)
  redis.call('DEL', prefix .. name)
  redis.call('HSET', prefix .. name, 'trigger', turn.trigger, 'timeout_ms', turn.timeout, 'streak', streak or '0')
  if turn.priority ~= '5' then redis.call('ZADD', priorities, turn.priority, name) end
  redis.call('ZADD', waiting, as_score(now_us() / 1000000), name)
end

-- A backfill: a line of turns by their time, and those of it that wait or run now, never more than it may at once.
local function backfill_keys(prefix, of)
  return prefix .. of .. '#line', prefix .. of .. '#backfill'
end

local function let_backfill_on(waiting, definitions, priorities, prefix, of)
  local line, begun = backfill_keys(prefix, of)
  for _, name in ipairs(call_sound('ZRANGE', begun, 0, -1)) do
    if redis.call('HEXISTS', definitions, name) == 0 then redis.call('ZREM', begun, name) end
  end
  local most = tonumber(read_record(prefix .. of, 'backfill_most')[1]) or 1
  for _ = redis.call('ZCARD', begun) + 1, most do -- guard: backfill-concurrency
    local first = call_sound('ZPOPMIN', line)
    if #first == 0 then return end
    local turn = {}
    turn.name, turn.trigger, turn.timeout, turn.priority, turn.spec = first[1]:match('^(%S+) (%S+) (%S+) (%S+) (.*)$')
    redis.call('ZADD', begun, first[2], turn.name)
    place_turn(waiting, definitions, priorities, prefix, turn.name, turn)
  end
end
