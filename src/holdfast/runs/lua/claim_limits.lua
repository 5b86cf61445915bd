-- Limits at the claim: a run that is over one of its limits is parked instead of begun.

-- In one order for all runs, so that no two wait for what the other has.
local function limits_of(extra_fields, agent)
  local wanted = {}
  local function want(kind, value, n)
    if value and value ~= '' and n and n > 0 then wanted[#wanted + 1] = { kind .. value, n } end
  end
  want('thread:', extra_fields.thread, 1)
  if most then
    want('key:', extra_fields.key, most.key)
    want('tenant:', extra_fields.tenant, most.tenant)
    want('agent:', agent, limited[agent])
  end
  return wanted
end

-- One that has waited tells the line behind it what its limit is by now.
local function apply_limit(name, n)
  local known = redis.call('HGET', most_of(limits), name)
  if known and tonumber(known) ~= n then
    set_most(limits, name, n)
    admit(limits, name, returned, run_prefix, clock)
  end
end

-- A limit that this run was let in by and that is none any more: nobody has to wait for it.
local NO_LIMIT = 1000000000
local function let_go_on(record, wanted)
  for _, name in ipairs(permits_of(redis.call('HGET', record, 'permits'))) do
    if not wanted[name] and not is_thread(name) then apply_limit(name, NO_LIMIT) end
  end
end

-- Returns false if the run has to wait for one of its limits. What it has of other limits is not for one that waits: it keeps its
-- thread and its place in line. If it has waited before it also keeps what comes before this limit in the one order of all limits:
-- two busy ones would else turn it away by turns for ever, and no circle can close along one order.
local function admitted(record, id, lane, entry, extra_fields, agent)
  local has, place = {}, extra_fields.place or place_of_entry(entry) -- guard: parked-place-kept
  for _, limit in ipairs(limits_of(extra_fields, agent)) do
    local name, n = limit[1], limit[2]
    if not take_permit(limits, name, n, record, id, clock, place) then
      drop_entry(lane, group, entry)
      local permits = redis.call('HGET', record, 'permits')
      release_permits(limits, record, id, permits, returned, run_prefix, clock, true, extra_fields.place and has) -- guard: permits-kept-in-order
      set_most(limits, name, n)
      park(limits, name, record, id, place)
      admit(limits, name, returned, run_prefix, clock) -- room in spite of a line: the limit was raised
      dropped = dropped + 1
      return false
    end
    has[name] = true
    if extra_fields.place then apply_limit(name, n) end -- guard: raised-limit-applied
  end
  if extra_fields.place then let_go_on(record, has) end
  return true
end
