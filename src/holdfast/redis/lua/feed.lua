-- The feed: the events of a run, in order. Every script that changes a run appends its event in the same call.
-- A run whose events are delivered to receivers has its queue's outbox in its record, which relays read. `outbox` is that field, or
-- false, if the caller has read it already.
local function append_event(record, kind, data, outbox)
  if outbox == nil then outbox = redis.call('HGET', record, 'outbox') end
  -- The outbox is `<queue>:outbox` beside `<queue>:run:<id>`, from which the id is taken. Any other value is not an outbox.
  if outbox and record:sub(1, #outbox - 2) == outbox:sub(1, -7) .. 'run:' then
    local added = redis.call('ZADD', outbox, 'NX', 0, record:sub(#outbox - 1))
    -- Without access to the channel, the relays find the event when they poll.
    if added == 1 then redis.pcall('PUBLISH', outbox .. ':notify', 'events') end -- guard: relay-notified
  end
  local feed = record .. ':events'
  local id = redis.pcall('XADD', feed, '*', 'type', kind, 'data', data)
  if not id.err then return id end
  -- The key has another type, or its stream ids are used up: a damaged feed of one run must not stop the queue.
  if id.err:find('WRONGTYPE', 1, true) or id.err:find('exhausted', 1, true) then redis.call('DEL', feed) end -- guard: damaged-feed-deleted
  return redis.call('XADD', feed, '*', 'type', kind, 'data', data)
end

-- Publishes an event to the clients that follow the run now; nothing is stored. Without access to the channel (a new Redis user has
-- none) they find the event when they poll the feed: the failed publish must not fail the script, whose writes are made already.
-- The text between an event's id and its data is cached by the type of the event.
local middles = {}
local function publish_event(record, id, kind, data)
  local middle = middles[kind]
  if not middle then
    middle = '","type":' .. (kind:find('^[%w_.]+$') and '"' .. kind .. '"' or cjson.encode(kind)) .. ',"data":'
    middles[kind] = middle
  end
  redis.pcall('PUBLISH', record .. ':live', '{"id":"' .. id .. middle .. data .. '}') -- guard: feed-publish-optional
end
