-- Settle a batch of attempts, each once and only under its fence: result or error, event, ack and delete in one call.
-- KEYS  1-4 lanes (streams), 5 delayed (zset), 6 dead letters (stream), 7 run prefix, 8 ended (zset), 9 limits (set),
--       10 unarchived (list)
-- ARGV  1 group, 2 owner, 3 deletes ('1' if acked entries are deleted), 4 retention ms,
--       then, for consecutive attempts with the same values: how many, status (succeeded | failed | timed_out | cancelled | delayed |
--       interrupted), value field (result | error | interrupt), delay ms (delayed), reason (failed, timed_out) or the number of the
--       interrupt (interrupted), lane number ('0': read it, with the optional fields), fence, '1' if event data follow
--       each value ('0': they are the value by its field's name), and per run: id, entry id, value (JSON), event data (JSON)
-- returns, for each attempt that was not simply settled: its number in the batch, then cancelled (instead of delayed or
--   interrupted) | already (settled before under this fence: a reply was lost) | stale | damaged (a key of the run is damaged)
-- @include attempt
-- @include clock
-- @include followed
-- @include limits
-- @include place
-- @include record
local redis, ARGV = redis, ARGV -- a local is faster than a global, which is searched by its name at every use
local call, try = redis.call, redis.pcall -- and so are these: they are called for every run
local returned, delayed, deadletter, run_prefix, ended = KEYS[1], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local limits, unarchived = KEYS[9], KEYS[10]
local group, owner, deletes, retention = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local HEAD, MANY = 7, 100
local EVENTS = { delayed = 'retrying' }
local PAUSES = { delayed = true, interrupted = true }

local now = now_ms()
local followed = #ARGV > MANY and followed_records(MANY)
local finished_at, expires_at = string.format('%d', now), string.format('%d', now + retention)

-- Entries are acked and deleted at the end, one call for each lane (those in `kept` are only acked). All ended runs are listed for
-- the archive in one note: `finished_at id id …`. The expiry of runs that succeeded (`batched`) is one such note too; each of the
-- other ended runs (`single`) has its own.
local done, kept, expiries, batched, single = {}, {}, {}, {}, {}

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

local function end_record(record, status, field, value)
  call('HSET', record, 'status', status, 'owner', '', field, value, 'finished_at', finished_at)
end

-- @include settle_one
-- @include settle_plain

-- A server that takes no writes now (it is full, a replica, or lacks replicas) refuses the first write of a script: nothing of the
-- batch is written, and the settler sends the whole batch again.
local function refusal_of(raised)
  local text = type(raised) == 'table' and raised.err or tostring(raised) -- a table in Redis, a string in Valkey
  for _, code in ipairs({ 'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS' }) do
    if text:find('^%-?' .. code .. ' ') then return { err = text } end
  end
end

local function positions_from(first, last, stride)
  local positions = {}
  for at = first, last, stride do positions[#positions + 1] = at end
  return positions
end

local words, before, at = {}, 0, 5
while ARGV[at] do
  local many, status, field, extra = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local lane, fence, with_data = KEYS[tonumber(ARGV[at + 4])], ARGV[at + 5], ARGV[at + 6] == '1'
  local first, stride = at + HEAD, with_data and 4 or 3
  local last = first + (many - 1) * stride
  local plain = lane and status == 'succeeded'
  local rest = plain and settle_plain(first, last, stride, field, lane, fence, with_data) or positions_from(first, last, stride)
  for _, run in ipairs(rest) do
    -- A run with damaged keys keeps its entry; the other runs of the batch are settled.
    local ok, word = pcall(settle_one, run, status, field, extra, lane, fence, with_data) -- guard: settle-each-alone
    local refusal = not ok and refusal_of(word)
    if refusal then return refusal end -- guard: settle-write-refused
    if word ~= 'settled' then
      words[#words + 1] = before + (run - first) / stride + 1
      words[#words + 1] = ok and word or 'damaged'
    end
  end
  before, at = before + many, last + stride
end

-- Each of these writes is for the whole batch: after an error of one, because of a damaged key, the others must still be made.
local failure
local function write(...)
  local reply = try(...)
  if type(reply) == 'table' and reply.err then failure = reply end
end

for _, lists in ipairs({ done, kept }) do
  for lane, entries in pairs(lists) do
    if entries[1] then
      write('XACK', lane, group, unpack(entries))
      if lists == done then write('XDEL', lane, unpack(entries)) end
    end
  end
end
if batched[1] then
  expiries[#expiries + 1] = expires_at
  expiries[#expiries + 1] = batched[2] and finished_at .. ' ' .. table.concat(batched, ' ') or batched[1]
end
if expiries[1] then
  write('ZADD', ended, unpack(expiries)) -- guard: ended-list-write
  for _, id in ipairs(batched) do single[#single + 1] = id end
  write('RPUSH', unarchived, finished_at .. ' ' .. table.concat(single, ' ')) -- guard: unarchived-end-time
end
return failure or words
