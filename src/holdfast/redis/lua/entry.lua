-- @include attempt
-- @include feed
-- Stream entries as leased work: which record an entry has, and how it is returned to be served first.

local function entry_fields(pairs_list)
  local fields = {}
  for i = 1, #pairs_list, 2 do fields[pairs_list[i]] = pairs_list[i + 1] end
  return fields
end

-- Returns the id that an entry has for its run. Only a new record needs valid_id: the id of an existing one was checked.
-- An id that ends like a feed's key could be one: reading that stream as a record would fail the whole script.
local function own_id(id, entry)
  if not id or id:sub(-7) == ':events' then return 'entry-' .. entry end
  return id
end

local function given_id(fields, entry)
  return own_id(fields['correlation_id'] or fields['task_id'], entry)
end

-- Returns an id of printable ASCII up to 256 bytes; an entry without one is named by its stream id.
local function valid_id(id, entry)
  if #id > 0 and #id <= 256 and not id:find('[^\33-\126]') then return id end
  return 'entry-' .. entry
end

local function drop_entry(lane, group, entry)
  redis.call('XACK', lane, group, entry)
  redis.call('XDEL', lane, entry)
end

-- Moves a delivered entry to the end of the lane that is served first; a blocked reader wakes up at once.
local function move_entry(lane, group, entry, pairs_list, returned)
  local moved = redis.call('XADD', returned, '*', unpack(pairs_list))
  drop_entry(lane, group, entry)
  return moved
end

-- unpack fails near 8,000 values: an entry with too many fields is moved with the fields that Holdfast uses.
local FIELDS_MOST = 1000
local function known_fields(fields, id)
  local pairs_list = { 'message_data', fields['message_data'] or cjson.encode(fields), 'correlation_id', id }
  for _, name in ipairs({ 'agent_id', 'task_id', 'timestamp' }) do
    if fields[name] then
      pairs_list[#pairs_list + 1] = name
      pairs_list[#pairs_list + 1] = fields[name]
    end
  end
  return pairs_list
end

-- Returns a page of a consumer's pending entries in a lane; none if the group does not exist.
local function pending_page(lane, group, from, count, consumer)
  local page = redis.pcall('XPENDING', lane, group, from, '+', count, consumer)
  return page.err and {} or page
end

-- Returns a pending entry of a consumer to the queue. Returns the record's id, or nil if nothing was left to return, and whether an
-- event was appended: only for a run that was started. attempt_back is 1 if the holder hands the run back, which is not an attempt.
local function return_entry(lane, group, entry, returned, run_prefix, event, consumer, attempt_back)
  local found = redis.call('XRANGE', lane, entry, entry)
  if #found == 0 then
    redis.call('XACK', lane, group, entry)
    return nil
  end
  local pairs_list = found[1][2]
  local fields = entry_fields(pairs_list)
  local id = valid_id(given_id(fields, entry), entry)
  local have = redis.pcall('HMGET', run_prefix .. id, 'status', 'lane', 'entry', 'fence', 'attempt')
  if have.err then
    -- The key of that name has another type: the record is named by the entry's id.
    id = 'entry-' .. entry
    have = redis.call('HMGET', run_prefix .. id, 'status', 'lane', 'entry', 'fence', 'attempt')
  end
  local record = run_prefix .. id
  if have[1] and (have[2] ~= lane or have[3] ~= entry) then
    drop_entry(lane, group, entry)
    return nil
  end
  -- The moved entry has a new stream id: an entry that is named by its stream id keeps its name as correlation_id.
  if fields['correlation_id'] ~= id or #pairs_list > FIELDS_MOST then pairs_list = known_fields(fields, id) end
  local moved = move_entry(lane, group, entry, pairs_list, returned)
  if not have[1] then return id end
  redis.call('HSET', record, 'lane', returned, 'entry', moved)
  if have[1] == 'running' then
    local fence = counted(have[4]) + 1
    local attempt = math.max(attempt_of(have[4], have[5]) - attempt_back, 0) -- guard: returned-run-attempt
    redis.call('HSET', record, 'status', 'queued', 'owner', '', 'fence', fence, 'attempt', attempt)
    append_event(record, event, '{"owner":' .. cjson.encode(consumer) .. ',"fence":' .. fence .. '}')
    return id, true
  end
  return id
end
