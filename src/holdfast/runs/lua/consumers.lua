-- List the consumers of a queue's group, over all its lanes.
-- KEYS  1-4 lanes (streams)
-- ARGV  1 group
-- returns, per consumer: name, idle ms (the least of all lanes), pending entries
-- @include group
local group = ARGV[1]

local seen, order = {}, {}
for i = 1, 4 do
  if group_of(KEYS[i], group) then
    for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[i], group)) do
      local consumer = named(info)
      local name = consumer['name']
      if not seen[name] then
        seen[name] = { idle = consumer['idle'], entries = 0 }
        order[#order + 1] = name
      end
      seen[name].idle = math.min(seen[name].idle, consumer['idle'])
      seen[name].entries = seen[name].entries + consumer['pending']
    end
  end
end

local listed = {}
for _, name in ipairs(order) do
  local at = #listed
  listed[at + 1], listed[at + 2], listed[at + 3] = name, seen[name].idle, seen[name].entries
end
return listed
