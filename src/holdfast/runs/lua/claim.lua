-- Read up to n entries from the lanes and claim their runs: status running, fence + 1, attempt + 1, first event. In one
-- script, so that no entry is read without being claimed, and no two workers claim the same run.
-- Entries of cancelled runs and duplicate entries are dropped; entries of foreign producers get their record here.
-- Run keys depend on the entries, so they can't be declared: they share the queue's hash tag through the run prefix.
-- KEYS  1-4 lanes (streams; the first is served first), 5 gate (hash), 6 runs (zset), 7 run prefix, 8 ended (zset),
--       9 limits (set), 10 outbox (zset), 11 unarchived (list)
-- ARGV  1 group, 2 owner, 3 how many, 4 lane numbers in the order to read ('1234'), 5 retention ms,
--       6 default agent, 7 '1' if events of adopted runs are delivered to receivers,
--       8 limits: JSON of { agents = { name: n }, tenant = n, key = n } or '',
--       then per entry that a blocking read has already delivered to the owner: lane number, entry id
-- returns { open | paused | regroup (a lane has lost its group), dropped, adopted, { rollbacks: run id, then the runs to roll
--         back and when each was submitted, separated by blanks }, { duplicate entries that were dropped, as their run exists:
--         run id, entry id }, and for consecutive runs with the same values: { lane number (0 if the runs have optional
--         fields, which settle must then read), fence, attempt, agent,
--         and per run: `id entry-id submitted_at`, in a thread also its generation, message } }
-- @include clock
-- @include entry
-- @include limits
-- @include resuming
local redis = redis -- a local is faster than a global, which is searched by its name at every use
local call, try = redis.call, redis.pcall -- and so are these: they are called for every run
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

-- Every field that is read costs time: `bound` is set if a run has any of the optional fields.
local function look_up(record)
  return try('HMGET', record, 'status', 'lane', 'entry', 'fence', 'submitted_at', 'bound')
end

-- Formatting a number is slow in Lua, and most numbers here are 1: the text of each number is kept.
local written_as = {}
local function digits(number)
  local text = written_as[number]
  if not text then
    text = string.format('%d', number)
    written_as[number] = text
  end
  return text
end

-- Entries of Holdfast have five fields in a fixed order, and are read by position.
local function is_ours(fields)
  return fields[9] == 'correlation_id' and fields[1] == 'message_data' and fields[3] == 'agent_id' and #fields == 10
end

-- Values that consecutive runs share are returned once. Each value of a reply costs more than joining three values into one.
local same_row, last = { -1 }, 0
local function add_claimed(number, fence, attempt, agent, id, entry, submitted_at, message)
  if same_row[1] ~= number or same_row[2] ~= fence or same_row[3] ~= attempt or same_row[4] ~= agent then
    same_row, last = { number, fence, attempt, agent }, 4
    claimed[#claimed + 1] = same_row
  end
  last = last + 2
  same_row[last - 1], same_row[last] = id .. ' ' .. entry .. ' ' .. submitted_at, message
end

local function begin(record, fence)
  call('HSET', record, 'status', 'running', 'fence', fence, 'owner', owner, 'started_at', now)
end

local function started(attempt, fence) return '{"attempt":' .. attempt .. ',"fence":' .. fence .. by_owner end

-- @include claim_plain

local paused = redis.call('HGET', gate, 'mode') == 'paused'
for i = FIRST_WOKEN, #ARGV, 2 do
  local number, entry = tonumber(ARGV[i]), ARGV[i + 1]
  local lane = KEYS[number]
  if paused or room <= 0 then
    return_entry(lane, group, entry, returned, run_prefix, 'handed_back', owner, 0)
  else
    -- The entry was delivered a while ago: by now another owner may have it, and its lease counts from the delivery.
    local found = redis.call('XRANGE', lane, entry, entry)
    if found[1] and #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) == 1 then -- guard: woken-entry-pending
      redis.call('XCLAIM', lane, group, owner, 0, entry, 'IDLE', 0, 'JUSTID') -- guard: woken-entry-idle-time
      claim_one(number, lane, entry, found[1][2])
    end
  end
end
if paused then return { 'paused', dropped, adopted, undo, duplicates } end -- guard: paused-claim-undo

for i = 1, #order do
  if room > 0 then
    local number = tonumber(order:sub(i, i))
    local lane = KEYS[number]
    -- A missing group must not fail the script: the runs claimed from the lanes before would get no reply.
    local read = redis.pcall('XREADGROUP', 'GROUP', group, owner, 'COUNT', room, 'STREAMS', lane, '>')
    if read and read.err then
      claimed[1] = 'regroup'
    elseif read then
      claim_plain(number, lane, read[1][2])
    end
  end
end
claimed[2], claimed[3] = dropped, adopted
return claimed
