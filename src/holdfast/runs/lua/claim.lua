-- Read up to n runs over the lanes and make each ours: status running, fence + 1, attempt + 1, first event. One script, so
-- that nothing is ever read without being claimed, and no two workers try the same run.
-- Cancelled runs and second entries of the same run are dropped here; entries of foreign producers get their record here.
-- Run keys are named by what is read, so they can't be declared: they share the queue's hash tag through the run prefix.
-- KEYS  1-4 lanes (streams; the first is served first), 5 gate (hash), 6 runs (zset), 7 run prefix
-- ARGV  1 group, 2 owner, 3 how many, 4 lane numbers in the order to read ('1234'), 5 retention ms,
--       6 default agent, then per entry that a blocking read has already delivered to us: lane number, entry id
-- returns { open | paused | regroup (a lane has lost its group), dropped, adopted, per run: id, fence, attempt, entry id, agent, message }
-- @include clock
-- @include entry
local returned, gate, index, run_prefix = KEYS[1], KEYS[5], KEYS[6], KEYS[7]
local group, owner, room, order, retention, default_agent = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local FIRST_WOKEN = 7

local now = string.format('%d', now_ms())
local quoted_owner = cjson.encode(owner)
local claimed, dropped, adopted = { 'open', 0, 0 }, 0, 0

local function look_up(record)
  return redis.pcall('HMGET', record, 'status', 'fence', 'attempt', 'lane', 'entry', 'cancel')
end

local function adopt(record, id, lane, entry, fields)
  local agent = fields['agent_id'] or default_agent
  local submitted = tonumber(entry:match('^%d+'))
  redis.call('HSET', record, 'status', 'queued', 'agent', agent, 'thread', '', 'lane', lane, 'entry', entry,
    'submitted_at', submitted, 'message', fields['message_data'] or cjson.encode(fields))
  redis.call('ZADD', index, submitted, id)
  append_event(record, 'adopted', '{}')
  adopted = adopted + 1
  return { 'queued', false, false, lane, entry, false }
end

local function end_cancelled(record, reason)
  redis.call('HSET', record, 'status', 'cancelled', 'finished_at', now)
  append_event(record, 'cancelled', cjson.encode({ reason = reason }))
end

local function drop(lane, entry, record, expire)
  drop_entry(lane, group, entry)
  if expire then
    redis.call('PEXPIRE', record, retention)
    redis.call('PEXPIRE', record .. ':events', retention)
  end
  dropped = dropped + 1
end

local function claim(lane, entry, pairs_list)
  local fields = entry_fields(pairs_list)
  local id = given_id(fields, entry)
  local record = run_prefix .. id
  local have = look_up(record)
  if not have[1] then
    -- Also if somebody keeps something else under that name: then the entry goes by its own.
    id = have.err and 'entry-' .. entry or valid_id(id, entry)
    record = run_prefix .. id
    have = look_up(record)
    if not have[1] then have = adopt(record, id, lane, entry, fields) end
  end
  local status, cancel = have[1], have[6]
  local same = have[4] == lane and have[5] == entry
  if not same or (status ~= 'queued' and status ~= 'running') then
    return drop(lane, entry, record, same and status == 'cancelled')
  end
  if cancel then
    end_cancelled(record, cancel)
    return drop(lane, entry, record, true)
  end
  local fence, attempt = (tonumber(have[2]) or 0) + 1, (tonumber(have[3]) or 0) + 1
  redis.call('HSET', record, 'status', 'running', 'fence', fence, 'attempt', attempt, 'owner', owner, 'started_at', now)
  append_event(record, 'started', '{"attempt":' .. attempt .. ',"fence":' .. fence .. ',"owner":' .. quoted_owner .. '}')
  local n = #claimed
  claimed[n + 1], claimed[n + 2], claimed[n + 3] = id, fence, attempt
  claimed[n + 4], claimed[n + 5] = entry, fields['agent_id'] or default_agent
  claimed[n + 6] = fields['message_data'] or cjson.encode(fields)
  room = room - 1
end

local paused = redis.call('HGET', gate, 'mode') == 'paused'
for i = FIRST_WOKEN, #ARGV, 2 do
  local lane, entry = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  if paused or room <= 0 then
    return_entry(lane, group, entry, returned, run_prefix, 'handed_back', owner, 0)
  else
    -- It was delivered a while ago, and the lease counts from then: it may be another's by now, and it is not fresh.
    local found = redis.call('XRANGE', lane, entry, entry)
    if found[1] and #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) == 1 then
      redis.call('XCLAIM', lane, group, owner, 0, entry, 'IDLE', 0, 'JUSTID')
      claim(lane, entry, found[1][2])
    end
  end
end
if paused then return { 'paused', dropped, adopted } end

for i = 1, #order do
  if room > 0 then
    local lane = KEYS[tonumber(order:sub(i, i))]
    -- A missing group must not cost us what was claimed from the lanes before.
    local read = redis.pcall('XREADGROUP', 'GROUP', group, owner, 'COUNT', room, 'STREAMS', lane, '>')
    if read and read.err then
      claimed[1] = 'regroup'
    elseif read then
      for _, item in ipairs(read[1][2]) do claim(lane, item[1], item[2]) end
    end
  end
end
claimed[2], claimed[3] = dropped, adopted
return claimed
