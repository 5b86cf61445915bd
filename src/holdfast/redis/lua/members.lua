-- List the processes of the index, and remove those whose records have expired long ago.
-- KEYS  1 members (zset by the expiry of each record, in seconds)
-- ARGV  1 how many seconds after its expiry a process is listed, 2 kind, or '' for all
-- returns kind:name of each
-- @include clock
local members, linger, kind = KEYS[1], tonumber(ARGV[1]), ARGV[2]

redis.call('ZREMRANGEBYSCORE', members, '-inf', now_ms() / 1000 - linger)
local all = redis.call('ZRANGE', members, 0, -1)
if kind == '' then return all end

local prefix, found = kind .. ':', {}
for _, name in ipairs(all) do
  if name:sub(1, #prefix) == prefix then found[#found + 1] = name end
end
return found
