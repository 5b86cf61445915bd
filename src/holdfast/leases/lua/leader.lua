-- The record of a leader, in one of two formats: a hash with the fields owner and fence, or a string `owner fence`, which a plain
-- GET returns. Both are the lease itself and expire with it.
local function read_leader(leader, format)
  if format == 'string' then
    local term = redis.call('GET', leader)
    if not term then return nil, nil end
    return string.match(term, '^(.*) (%d+)$')
  end
  local have = redis.call('HMGET', leader, 'owner', 'fence')
  return have[1], have[2]
end

local function write_leader(leader, format, owner, fence)
  if format == 'string' then redis.call('SET', leader, owner .. ' ' .. fence)
  else redis.call('HSET', leader, 'owner', owner, 'fence', fence) end
end

local function leads(leader, format, owner, fence)
  -- A key that was overwritten with another type is not held.
  local readable, have_owner, have_fence = pcall(read_leader, leader, format)
  return readable and have_owner == owner and have_fence == fence -- guard: leader-owner-and-fence
end
