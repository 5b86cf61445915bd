-- The feed: what happened to a run, in order. Every script that changes a run appends here, in the same call.
-- A run whose events go outside names its queue's outbox in its record: whoever relays them looks there. `outbox` is that
-- field, or false, where the caller has read it already.
local function append_event(record, kind, data, outbox)
  if outbox == nil then outbox = redis.call('HGET', record, 'outbox') end
  -- `<queue>:outbox` beside `<queue>:run:<id>`: what follows in the record's name is the id. Anything else is no outbox of ours.
  if outbox and record:sub(1, #outbox - 2) == outbox:sub(1, -7) .. 'run:' then
    local added = redis.call('ZADD', outbox, 'NX', 0, record:sub(#outbox - 1))
    -- A user that may not use the channel leaves the relays to their next look.
    if added == 1 then redis.pcall('PUBLISH', outbox .. ':notify', 'events') end -- guard: relay-notified
  end
  local feed = record .. ':events'
  local id = redis.pcall('XADD', feed, '*', 'type', kind, 'data', data)
  if not id.err then return id end
  -- Somebody keeps something else under that name, or has used up its ids: one run's events are no reason to stop a queue.
  if id.err:find('WRONGTYPE', 1, true) or id.err:find('exhausted', 1, true) then redis.call('DEL', feed) end -- guard: damaged-feed-deleted
  return redis.call('XADD', feed, '*', 'type', kind, 'data', data)
end

-- For listeners that only want to hear it now: nothing is kept for those who come later. A user that may not use the channel
-- (new ones may use none) leaves them to their next look at the feed: what is told already must not stop what it tells of.
-- What stands between an event's id and its data is the same for all of its kind.
local between = {}
local function publish_event(record, id, kind, data)
  local words = between[kind]
  if not words then
    words = '","type":' .. (kind:find('^[%w_.]+$') and '"' .. kind .. '"' or cjson.encode(kind)) .. ',"data":'
    between[kind] = words
  end
  redis.pcall('PUBLISH', record .. ':live', '{"id":"' .. id .. words .. data .. '}') -- guard: feed-publish-optional
end
