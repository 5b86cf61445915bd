-- Queue lost runs again: their status is queued, running or delayed, but no entry would bring them to a worker, because the entry
-- was deleted or acked by hand, or its consumer was deleted, or a failover lost it.
-- A run that a worker may still perform gets a higher fence, and becomes due only when the worker's lease has expired.
-- KEYS  1-4 lanes (streams; the first is served first), 5 delayed (zset), 6 run prefix, 7 ended (zset), 8 limits (set)
-- ARGV  1 group, 2 lease ttl ms, 3 retention ms, 4 '1' for a dry run, then run ids
-- returns, per run: fine | young (its entry is too recent to be certain) | restored | expiring (it has ended, and has an expiry now)
-- @include attempt
-- @include clock
-- @include group
-- @include ids
-- @include limits
-- @include place
-- @include record
local returned, delayed, run_prefix, ended, limits = KEYS[1], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, ttl, retention, dry_run = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local LIVE = { queued = true, running = true }
local ENDED = { succeeded = true, failed = true, timed_out = true, cancelled = true }

local now = now_ms()
local infos = {}
for i = 1, 4 do infos[KEYS[i]] = group_of(KEYS[i], group) end

-- Whether the entry will be delivered or is pending; an entry that was delivered and is not pending is lost.
local function in_place(lane, entry)
  if not is_place(lane, entry) then return false end
  local exists = #redis.call('XRANGE', lane, entry, entry) == 1
  local info = infos[lane]
  if not info then return exists end
  local pending = redis.call('XPENDING', lane, group, entry, entry, 1)[1]
  if exists then return pending ~= nil or id_before(info['last-delivered-id'], entry) end
  return pending ~= nil and pending[3] < ttl
end

local function drop(lane, entry)
  if not is_place(lane, entry) then return end
  if infos[lane] then redis.call('XACK', lane, group, entry) end
  redis.call('XDEL', lane, entry)
end

local function append_restored(record, was, fence)
  append_event(record, 'restored', '{"was":"' .. was .. '","fence":' .. fence .. '}')
end

local function queue_again(id, record, run)
  local fence = run.fence + 1
  drop(run.lane, run.entry)
  local entry = queue_entry(returned, id, run.agent, run.message, stamp_of(now))
  redis.call('HSET', record, 'lane', returned, 'entry', entry, 'fence', fence, 'owner', '', 'parked', '')
  -- guard: restored-run-attempt
  if fence == 1 then redis.call('HSET', record, 'attempt', 0) end -- a fence without an attempt would count as the first attempt
  redis.call('SREM', limits:sub(1, -7) .. 'waiters', id)
  append_restored(record, run.status, fence)
end

-- The worker trusts its lease for less than the ttl, so the run must not start elsewhere before the ttl has passed.
local function take_away(id, record, run)
  local fence, due = run.fence + 1, now + ttl
  drop(run.lane, run.entry)
  redis.call('HSET', record, 'status', 'delayed', 'entry', '', 'fence', fence, 'owner', '', 'due_at', due)
  redis.call('ZADD', delayed, due, id)
  append_restored(record, run.status, fence)
end

local function wait_again(id, record, run)
  redis.call('ZADD', delayed, run.due, id)
  append_restored(record, run.status, run.fence)
end

local function set_expiry(id, run)
  drop(run.lane, run.entry)
  redis.call('ZADD', ended, now + retention, id)
end

local function restore(id)
  local record = run_prefix .. id
  local have = read_fields(record, 'status', 'lane', 'entry', 'fence', 'agent', 'message', 'due_at', 'parked')
  local run = { status = have[1], lane = have[2], entry = have[3], fence = counted(have[4]), agent = have[5] or '',
    message = have[6] or '', due = is_count(have[7]) and tonumber(have[7]) or now }
  if not run.status or redis.call('ZSCORE', ended, id) then return 'fine' end
  if run.status == 'delayed' then
    if redis.call('ZSCORE', delayed, id) then return 'fine' end
    if not dry_run then wait_again(id, record, run) end
    return 'restored'
  end
  if have[8] and have[8] ~= '' and redis.call('ZSCORE', parked_of(limits, have[8]), id) then return 'fine' end -- guard: parked-run-not-lost
  if not (LIVE[run.status] or ENDED[run.status]) or in_place(run.lane, run.entry) then return 'fine' end
  if tonumber((run.entry or ''):match('^%d+') or 0) > now - 2 * ttl then return 'young' end
  if ENDED[run.status] then
    if not dry_run then set_expiry(id, run) end
    return 'expiring'
  end
  if not dry_run then (run.status == 'running' and take_away or queue_again)(id, record, run) end
  return 'restored'
end

local words = {}
for i = 5, #ARGV do words[#words + 1] = restore(ARGV[i]) end
return words
