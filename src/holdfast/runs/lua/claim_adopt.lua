-- Adopt the entry of a foreign producer: it gets its record when it is claimed.

-- Returns the fields of a foreign entry's envelope; none if it can't be decoded, which the worker reports.
local function envelope_fields(written)
  local decoded, envelope = pcall(cjson.decode, written or '')
  if not decoded or type(envelope) ~= 'table' then return {} end
  local function text(name) return type(envelope[name]) == 'string' and #envelope[name] <= 256 and envelope[name] or '' end
  local calls = text('webhook') ~= '' or (type(envelope['push']) == 'table' and next(envelope['push']) ~= nil)
  return { thread = text('thread_id'), tenant = text('tenant'), calls = calls }
end

local function adopt(record, id, lane, entry, agent, message, written)
  local submitted = entry:match('^%d+')
  local own = envelope_fields(written)
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
