-- End a batch of attempts, each once and only under the fence it ran under: result or error, event, ack and delete together.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 dead letters (stream), 7 run prefix, 8 ended (zset), 9 limits (set),
--       10 unarchived (list)
-- ARGV  1 group, 2 owner, 3 deletes ('1' if acked entries are deleted), 4 retention ms,
--       then, for those in a row that end alike: how many, status (succeeded | failed | timed_out | cancelled | delayed |
--       interrupted), value field (result | error | interrupt), delay ms (delayed), reason (failed, timed_out) or which interrupt
--       of the run it is (interrupted), lane number ('0': look it up, with what few runs have), fence, '1' if event data follow
--       each value ('0': they are the value by its field's name), and per run: id, entry id, value (JSON), event data (JSON)
-- returns, of those that were not simply settled: their number in the batch, then cancelled (instead of delayed or interrupted) |
--   already (this fence settled before: a reply was lost) | stale | damaged (a key of the run is not what it should be)
-- @include attempt
-- @include clock
-- @include hearing
-- @include limits
-- @include place
-- @include record
local redis, ARGV = redis, ARGV -- a global is looked up by its name at every use
local call, try = redis.call, redis.pcall -- and so is what is in it: for what every run passes
local returned, delayed, deadletter, run_prefix, ended = KEYS[1], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local limits, unarchived = KEYS[9], KEYS[10]
local group, owner, deletes, retention = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local HEAD, MANY = 7, 100
local EVENTS = { delayed = 'retrying' }
local PAUSES = { delayed = true, interrupted = true }

local now = now_ms()
local heard = #ARGV > MANY and records_heard(MANY)
local finished_at, leaves_at = string.format('%d', now), string.format('%d', now + retention)

-- Entries are acked and deleted together at the end, one call for each lane (those in `kept` are only acked); and all ended runs
-- are noted in one, for the archive by one note: `finished_at id id …`. Those that succeeded leave together too, by such a note;
-- the others are those `apart`.
local done, kept, leaving, together, apart = {}, {}, {}, {}, {}

local function list_of(lists, lane)
  local list = lists[lane]
  if not list then
    list = {}
    lists[lane] = list
  end
  return list
end

local function finish_entry(lane, entry, delete)
  local list = list_of(delete and done or kept, lane)
  list[#list + 1] = entry
end

-- A letter has all that a replay needs after its record has expired: also the fence, which must go on growing.
local function bury(record, id, status, error, reason)
  local have = redis.call('HMGET', record, 'agent', 'attempt', 'message', 'fence', 'thread')
  local entry = redis.call('XADD', deadletter, '*', 'run_id', id, 'agent_id', have[1] or '', 'status', status,
    'reason', reason, 'attempts', attempt_of(have[4], have[2]), 'error', error, 'message_data', have[3] or '', 'fence', have[4],
    'thread', have[5] or '')
  redis.call('HSET', record, 'dead', entry)
end

local function end_record(record, status, field, value)
  call('HSET', record, 'status', status, 'owner', '', field, value, 'finished_at', finished_at)
end

-- To go on later: when it is due, or has its answer.
local function pause_run(record, id, status, field, value, extra, event, data)
  local when, at = 'interrupts', extra
  if status == 'delayed' then
    when, at = 'due_at', now + tonumber(extra)
    redis.call('ZADD', delayed, at, id)
  else
    publish_event(record, event, status, data)
  end
  redis.call('HSET', record, 'status', status, 'owner', '', field, value, when, at, 'entry', '')
end

local function end_run(record, id, status, field, value, reason, event, data)
  if not heard or heard[record] then publish_event(record, event, status, data) end
  end_record(record, status, field, value)
  if status == 'failed' or status == 'timed_out' then bury(record, id, status, value, reason) end
  if status == 'succeeded' then
    together[#together + 1] = id
  else
    leaving[#leaving + 1] = leaves_at
    leaving[#leaving + 1] = id
    apart[#apart + 1] = id
  end
end

local function settle(at, status, field, extra, lane, fence, told)
  local id, entry, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local data = told and ARGV[at + 3] or '{"' .. field .. '":' .. value .. '}'
  local record = run_prefix .. id
  local have = read_fields(record, 'owner', 'fence')
  if have[2] ~= fence then return 'stale' end -- guard: settle-fence
  if have[1] ~= owner then return have[1] == '' and 'already' or 'stale' end -- guard: settle-again

  local permits, outbox = false, false
  if not lane then
    lane, entry, permits, outbox = unpack(redis.call('HMGET', record, 'lane', 'entry', 'permits', 'outbox'))
    -- guard: settle-known-place
    if not is_place(lane, entry) then return 'damaged' end -- before anything is written
  end
  local cancelled = PAUSES[status] and redis.call('HGET', record, 'cancel')
  if cancelled then -- guard: settle-cancelled
    -- Nobody wants it to go on: the cancel came while this attempt failed, or asked for an answer.
    status, data = 'cancelled', cjson.encode({ reason = cancelled })
    if field == 'interrupt' then field, value = 'error', cjson.encode({ kind = 'cancelled', message = cancelled }) end
  end
  local pauses, event = PAUSES[status], append_event(record, EVENTS[status] or status, data, outbox)
  local finish = pauses and pause_run or end_run
  finish(record, id, status, field, value, extra, event, data)
  if permits then release_permits(limits, record, id, permits, returned, run_prefix, now, pauses) end
  finish_entry(lane, entry, pauses or deletes)
  return cancelled and 'cancelled' or 'settled'
end

-- A server that takes no writes now (it is full, a replica, or has none) takes none of the batch: this is refused before the
-- first write of a script, and it is all sent again.
local function refusal_of(raised)
  local text = type(raised) == 'table' and raised.err or tostring(raised) -- a table in Redis, a string in Valkey
  for _, code in ipairs({ 'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS' }) do
    if text:find('^%-?' .. code .. ' ') then return { err = text } end
  end
end

-- Most runs succeed and have nothing that few have. Of those one thing is done after the other, each for all of them, as in the
-- claim. Returns where in ARGV the others are, with which something is wrong: they are settled one by one.
local function succeed_all(first, last, stride, field, lane, fence, told)
  local records, place_of, n, others = {}, {}, 0, {}
  for at = first, last, stride do
    local record = run_prefix .. ARGV[at]
    local have = try('HMGET', record, 'owner', 'fence')
    if have[1] == owner and have[2] == fence and not place_of[record] then -- guard: settle-together
      n = n + 1
      records[n], place_of[record] = record, at
    else
      others[#others + 1] = at
    end
  end
  local entries, opening = list_of(deletes and done or kept, lane), '{"' .. field .. '":'
  for i = 1, n do
    local record = records[i]
    local at = place_of[record]
    local data = told and ARGV[at + 3] or opening .. ARGV[at + 2] .. '}'
    local event = try('XADD', record .. ':events', '*', 'type', 'succeeded', 'data', data)
    if event.err then -- guard: finished-event-retry
      others[#others + 1], records[i] = at, false
    else
      entries[#entries + 1], together[#together + 1] = ARGV[at + 1], ARGV[at]
      if not heard or heard[record] then publish_event(record, event, 'succeeded', data) end
    end
  end
  for i = 1, n do
    local record = records[i]
    if record then end_record(record, 'succeeded', field, ARGV[place_of[record] + 2]) end
  end
  -- guard: settle-in-order
  table.sort(others) -- of a run that is named twice the first one counts
  return others
end

local function all_of(first, last, stride)
  local places = {}
  for at = first, last, stride do places[#places + 1] = at end
  return places
end

local words, before, at = {}, 0, 5
while ARGV[at] do
  local many, status, field, extra = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local lane, fence, told = KEYS[tonumber(ARGV[at + 4])], ARGV[at + 5], ARGV[at + 6] == '1'
  local first, stride = at + HEAD, told and 4 or 3
  local last = first + (many - 1) * stride
  local plain = lane and status == 'succeeded'
  local rest = plain and succeed_all(first, last, stride, field, lane, fence, told) or all_of(first, last, stride)
  for _, run in ipairs(rest) do
    -- One whose keys somebody has damaged keeps its entry, and the others of the batch their end.
    local fine, word = pcall(settle, run, status, field, extra, lane, fence, told) -- guard: settle-each-alone
    local refusal = not fine and refusal_of(word)
    if refusal then return refusal end -- guard: settle-write-refused
    if word ~= 'settled' then
      words[#words + 1] = before + (run - first) / stride + 1
      words[#words + 1] = fine and word or 'damaged'
    end
  end
  before, at = before + many, last + stride
end

-- What follows is each for the whole batch: a key that somebody has damaged must not keep the others from being written.
local trouble
local function write(...)
  local said = try(...)
  if type(said) == 'table' and said.err then trouble = said end
end

for _, lists in ipairs({ done, kept }) do
  for lane, entries in pairs(lists) do
    if entries[1] then
      write('XACK', lane, group, unpack(entries))
      if lists == done then write('XDEL', lane, unpack(entries)) end
    end
  end
end
if together[1] then
  leaving[#leaving + 1] = leaves_at
  leaving[#leaving + 1] = together[2] and finished_at .. ' ' .. table.concat(together, ' ') or together[1]
end
if leaving[1] then
  write('ZADD', ended, unpack(leaving)) -- guard: ended-list-write
  for _, id in ipairs(together) do apart[#apart + 1] = id end
  write('RPUSH', unarchived, finished_at .. ' ' .. table.concat(apart, ' ')) -- guard: unarchived-end-time
end
return trouble or words
