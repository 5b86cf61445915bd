-- Read up to n runs over the lanes and make each ours: status running, fence + 1, attempt + 1, first event. One script, so
-- that nothing is ever read without being claimed, and no two workers try the same run.
-- Cancelled runs and second entries of the same run are dropped here; entries of foreign producers get their record here.
-- Run keys are named by what is read, so they can't be declared: they share the queue's hash tag through the run prefix.
-- KEYS  1-4 lanes (streams; the first is served first), 5 gate (hash), 6 runs (zset), 7 run prefix, 8 ended (zset),
--       9 limits (set), 10 outbox (zset), 11 unarchived (list)
-- ARGV  1 group, 2 owner, 3 how many, 4 lane numbers in the order to read ('1234'), 5 retention ms,
--       6 default agent, 7 '1' if adopted runs' events go outside,
--       8 limits: JSON of { agents = { name: n }, tenant = n, key = n } or '',
--       then per entry that a blocking read has already delivered to us: lane number, entry id
-- returns { open | paused | regroup (a lane has lost its group), dropped, adopted, { runs of a thread to undo first: id, then
--         what to undo and when each was submitted, separated by blanks }, { second entries that were dropped because their run
--         is known: run id, entry id }, and for those in a row that begin alike: { lane number
--         (0 if they have what few runs have: then their end has more to look up), fence, attempt, agent,
--         and per run: `id entry-id submitted_at`, with one of a thread its generation too, message } }
-- @include clock
-- @include entry
-- @include limits
-- @include resuming
local redis = redis -- a global is looked up by its name at every use
local call, try = redis.call, redis.pcall -- and so is what is in it: for what every run passes
local returned, gate, index, run_prefix, ended = KEYS[1], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local limits, outbox, unarchived = KEYS[9], KEYS[10], KEYS[11]
local group, owner, room, order = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local retention, default_agent, outside = tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1'
local most = ARGV[8] ~= '' and cjson.decode(ARGV[8]) or nil
local limited = most and most.agents or {}
local FIRST_WOKEN = 9

local clock = now_ms()
local now = string.format('%d', clock)
local by_owner = ',"owner":' .. cjson.encode(owner) .. '}'
local undo, duplicates, dropped, adopted = {}, {}, 0, 0
local claimed = { 'open', 0, 0, undo, duplicates }

-- Every field that is read costs more than what is done with it: whatever few runs have is behind `bound`.
local function look_up(record)
  return try('HMGET', record, 'status', 'lane', 'entry', 'fence', 'submitted_at', 'bound')
end

-- Most numbers here are a one, and Lua writes every number as a fraction, which takes its time.
local written_as = {}
local function digits(number)
  local text = written_as[number]
  if not text then
    text = string.format('%d', number)
    written_as[number] = text
  end
  return text
end

-- What the envelope of a foreign entry says of itself; whether it can be read at all is the worker's to say.
local function said(written)
  local fine, envelope = pcall(cjson.decode, written or '')
  if not fine or type(envelope) ~= 'table' then return {} end
  local function text(name) return type(envelope[name]) == 'string' and #envelope[name] <= 256 and envelope[name] or '' end
  local calls = text('webhook') ~= '' or (type(envelope['push']) == 'table' and next(envelope['push']) ~= nil)
  return { thread = text('thread_id'), tenant = text('tenant'), calls = calls }
end

local function adopt(record, id, lane, entry, agent, message, written)
  local submitted = entry:match('^%d+')
  local own = said(written)
  local tenant = own.tenant or ''
  local thread = (own.thread or '') ~= '' and scoped(tenant, own.thread) or ''
  redis.call('HSET', record, 'status', 'queued', 'lane', lane, 'entry', entry, 'submitted_at', submitted, 'agent', agent,
    'message', message)
  redis.call('ZADD', index, submitted, id)
  if thread ~= '' then redis.call('HSET', record, 'thread', thread) end
  if tenant ~= '' then redis.call('HSET', record, 'tenant', tenant) end
  local leaves = outside or own.calls
  if leaves then redis.call('HSET', record, 'outbox', outbox) end
  local bound = (leaves or thread ~= '' or tenant ~= '') and '1'
  if bound then redis.call('HSET', record, 'bound', bound) end
  append_event(record, 'adopted', '{}', leaves and outbox)
  adopted = adopted + 1
  return { 'queued', lane, entry, false, submitted, bound }
end

-- What few runs have, read only of those whose record says that there is something.
local NO_BONDS = { outbox = false }
local function bonds_of(record, bound)
  if not bound then return NO_BONDS end
  local have = redis.call('HMGET', record, 'thread', 'tenant', 'key', 'outbox', 'cancel', 'place')
  local place = is_count(have[6]) and tonumber(have[6]) or nil
  return { thread = have[1], tenant = have[2], key = have[3], outbox = have[4], cancel = have[5], place = place }
end

-- Undoing is done by every attempt until the run has ended: the first one may die before it gets to it.
local function take_debts(record, id, thread)
  if not thread or thread == '' then return end
  local debts = limits:sub(1, -7) .. 'rollbacks'
  local mine, owed = redis.call('HGET', record, 'rollback'), redis.call('HGET', debts, thread)
  if owed then
    mine = mine and mine .. ' ' .. owed or owed
    redis.call('HDEL', debts, thread)
    redis.call('HSET', record, 'rollback', mine)
  end
  if mine then
    undo[#undo + 1] = id
    undo[#undo + 1] = mine
  end
end

-- In one order for all runs, so that no two wait for what the other has.
local function limits_of(bonds, agent)
  local wanted = {}
  local function want(kind, value, n)
    if value and value ~= '' and n and n > 0 then wanted[#wanted + 1] = { kind .. value, n } end
  end
  want('thread:', bonds.thread, 1)
  if most then
    want('key:', bonds.key, most.key)
    want('tenant:', bonds.tenant, most.tenant)
    want('agent:', agent, limited[agent])
  end
  return wanted
end

-- One that has waited tells the line behind it what its limit is by now.
local function apply_limit(name, n)
  local known = redis.call('HGET', most_of(limits), name)
  if known and tonumber(known) ~= n then
    set_most(limits, name, n)
    admit(limits, name, returned, run_prefix, clock)
  end
end

-- A limit that this run was let in by and that is none any more: nobody has to wait for it.
local NO_LIMIT = 1000000000
local function let_go_on(record, wanted)
  for _, name in ipairs(permits_of(redis.call('HGET', record, 'permits'))) do
    if not wanted[name] and not is_thread(name) then apply_limit(name, NO_LIMIT) end
  end
end

-- Returns false if the run has to wait for one of its limits. What it has of other limits is not for one that waits: it keeps its
-- thread and its place in line. If it has waited before it also keeps what comes before this limit in the one order of all limits:
-- two busy ones would else turn it away by turns for ever, and no circle can close along one order.
local function admitted(record, id, lane, entry, bonds, agent)
  local has, place = {}, bonds.place or place_of_entry(entry) -- guard: parked-place-kept
  for _, limit in ipairs(limits_of(bonds, agent)) do
    local name, n = limit[1], limit[2]
    if not take_permit(limits, name, n, record, id, clock, place) then
      drop_entry(lane, group, entry)
      local permits = redis.call('HGET', record, 'permits')
      release_permits(limits, record, id, permits, returned, run_prefix, clock, true, bonds.place and has) -- guard: permits-kept-in-order
      set_most(limits, name, n)
      park(limits, name, record, id, place)
      admit(limits, name, returned, run_prefix, clock) -- room in spite of a line: the limit was raised
      dropped = dropped + 1
      return false
    end
    has[name] = true
    if bonds.place then apply_limit(name, n) end -- guard: raised-limit-applied
  end
  if bonds.place then let_go_on(record, has) end
  return true
end

-- Under a higher fence: whoever may still hold it, because its group was made anew, must not end it once more.
local function end_cancelled(record, id, reason, fence)
  local data = cjson.encode({ reason = reason })
  redis.call('HSET', record, 'status', 'cancelled', 'finished_at', now, 'owner', '', 'fence', digits(counted(fence) + 1))
  redis.call('RPUSH', unarchived, now .. ' ' .. id)
  publish_event(record, append_event(record, 'cancelled', data), 'cancelled', data)
  release_permits(limits, record, id, redis.call('HGET', record, 'permits'), returned, run_prefix, clock)
end

local function drop(lane, entry, id, leaves)
  drop_entry(lane, group, entry)
  if leaves then redis.call('ZADD', ended, clock + retention, id) end
  dropped = dropped + 1
end

-- A producer answers an interrupted run by an entry of the same id that says RESUME; the envelope is kept as it came.
local function answers(status, written)
  if status ~= 'interrupted' or not (written or ''):find('"RESUME"', 1, true) then return false end
  local fine, envelope = pcall(cjson.decode, written)
  return fine and type(envelope) == 'table' and envelope['action'] == 'RESUME' -- guard: resume-action
end

-- Our own entries have five fields in one order, and are read by it.
local function is_ours(fields)
  return fields[9] == 'correlation_id' and fields[1] == 'message_data' and fields[3] == 'agent_id' and #fields == 10
end

-- Returns id, agent (empty if it names none), message (nil if it has none) and, of anybody else's entry, all its fields by name.
local function parts_of(fields, entry)
  if is_ours(fields) then return own_id(fields[10], entry), fields[4], fields[2] end
  local named = entry_fields(fields)
  return given_id(named, entry), named['agent_id'] or '', named['message_data'], named
end

-- A run that names no agent: the record has to learn which one it is begun with, also one that has waited since before there was any.
local function default_for(record)
  if default_agent ~= '' then redis.call('HSET', record, 'agent', default_agent) end
  return default_agent
end

-- What is the same for those in a row is said once. Every value of a reply costs more than putting three into one.
local alike, last = { -1 }, 0
local function answer(number, fence, attempt, agent, id, entry, submitted_at, message)
  if alike[1] ~= number or alike[2] ~= fence or alike[3] ~= attempt or alike[4] ~= agent then
    alike, last = { number, fence, attempt, agent }, 4
    claimed[#claimed + 1] = alike
  end
  last = last + 2
  alike[last - 1], alike[last] = id .. ' ' .. entry .. ' ' .. submitted_at, message
end

local function begin(record, fence)
  call('HSET', record, 'status', 'running', 'fence', fence, 'owner', owner, 'started_at', now)
end

-- Each attempt of a thread has a higher one than the attempt before, of whichever run: the store goes by it.
local function generation_of(bonds)
  if not bonds.thread or bonds.thread == '' then return '' end
  return string.format(' %.0f', next_place(limits, clock)) -- guard: thread-generation
end

local function started(attempt, fence) return '{"attempt":' .. attempt .. ',"fence":' .. fence .. by_owner end

-- `seen` is what the record says that the tenth field names, if it was looked up already.
local function claim(number, lane, entry, fields, seen)
  local id, agent, written, named = parts_of(fields, entry)
  local message = written or cjson.encode(named)
  local record = run_prefix .. id
  local have = id == fields[10] and seen or look_up(record)
  if not have[1] then
    -- Also if somebody keeps something else under that name: then the entry goes by its own.
    id = have.err and 'entry-' .. entry or valid_id(id, entry)
    record = run_prefix .. id
    have = look_up(record)
    if not have[1] then have = adopt(record, id, lane, entry, agent, message, written) end
  end
  local status, same = have[1], have[3] == entry and have[2] == lane
  local answered = answers(status, written)
  if answered then
    local run = redis.call('HMGET', record, 'agent', 'message', 'interrupts')
    go_on(returned, record, id, run, 'envelope', written, '', clock)
  end
  if not same or (status ~= 'queued' and status ~= 'running') then -- guard: claim-startable
    if not same and not answered then
      duplicates[#duplicates + 1] = id
      duplicates[#duplicates + 1] = entry
    end
    return drop(lane, entry, id, same and status == 'cancelled')
  end
  local bonds = bonds_of(record, have[6])
  if bonds.cancel then
    end_cancelled(record, id, bonds.cancel, have[4])
    return drop(lane, entry, id, true)
  end
  if agent == '' then agent = default_for(record) end -- guard: empty-agent-default
  local bound = have[6] or limited[agent]
  if bound and not admitted(record, id, lane, entry, bonds, agent) then return end
  -- Only one that was begun before has an attempt to be counted on from.
  local fence, attempt = 1, 1
  if have[4] then
    fence, attempt = counted(have[4]) + 1, attempt_of(have[4], redis.call('HGET', record, 'attempt')) + 1 -- guard: attempt-counted-at-claim
    redis.call('HSET', record, 'attempt', digits(attempt))
  end
  begin(record, digits(fence))
  append_event(record, 'started', started(digits(attempt), digits(fence)), bonds.outbox)
  take_debts(record, id, bonds.thread)
  local submitted_at = (have[5] or '0') .. generation_of(bonds)
  answer(bound and 0 or number, fence, attempt, agent, id, entry, submitted_at, message) -- guard: claim-bound-number
  room = room - 1
end

-- Whether a run begins for the first time and has nothing that few have, as most do.
local function is_plain(have, lane, entry, agent)
  -- guard: first-start
  return have[3] == entry and have[2] == lane and have[1] == 'queued' and not have[4] and not have[6] and not limited[agent]
    and agent ~= ''
end

-- Of plain runs one thing is done after the other, each for all of them: it takes a tenth less than run by run (`make bench
-- ARGS=instructions`). Their events are appended without append_event: they have no outbox, and their feed is most often one.
local function claim_all(number, lane, items)
  local records, n = {}, 0
  for i = 1, #items do
    local entry, fields = items[i][1], items[i][2]
    local record = is_ours(fields) and run_prefix .. fields[10] -- guard: entry-written-by-us
    local have = record and look_up(record)
    if have and is_plain(have, lane, entry, fields[4]) then
      n = n + 1
      records[n] = record
      answer(number, 1, 1, fields[4], fields[10], entry, have[5] or '0', fields[2])
    else
      claim(number, lane, entry, fields, have)
    end
  end
  for i = 1, n do begin(records[i], '1') end
  local data = started('1', '1')
  for i = 1, n do
    local event = try('XADD', records[i] .. ':events', '*', 'type', 'started', 'data', data)
    if event.err then append_event(records[i], 'started', data, false) end -- guard: started-event-retry
  end
  room = room - n
end

local paused = redis.call('HGET', gate, 'mode') == 'paused'
for i = FIRST_WOKEN, #ARGV, 2 do
  local number, entry = tonumber(ARGV[i]), ARGV[i + 1]
  local lane = KEYS[number]
  if paused or room <= 0 then
    return_entry(lane, group, entry, returned, run_prefix, 'handed_back', owner, 0)
  else
    -- It was delivered a while ago, and the lease counts from then: it may be another's by now, and it is not fresh.
    local found = redis.call('XRANGE', lane, entry, entry)
    if found[1] and #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) == 1 then -- guard: woken-entry-pending
      redis.call('XCLAIM', lane, group, owner, 0, entry, 'IDLE', 0, 'JUSTID') -- guard: woken-entry-idle-time
      claim(number, lane, entry, found[1][2])
    end
  end
end
if paused then return { 'paused', dropped, adopted, undo, duplicates } end -- guard: paused-claim-undo

for i = 1, #order do
  if room > 0 then
    local number = tonumber(order:sub(i, i))
    local lane = KEYS[number]
    -- A missing group must not cost us what was claimed from the lanes before.
    local read = redis.pcall('XREADGROUP', 'GROUP', group, owner, 'COUNT', room, 'STREAMS', lane, '>')
    if read and read.err then
      claimed[1] = 'regroup'
    elseif read then
      claim_all(number, lane, read[1][2])
    end
  end
end
claimed[2], claimed[3] = dropped, adopted
return claimed
