-- Limits at the claim: a run that exceeds one of its limits is parked instead of started.

-- Returns the limits in one order for all runs, so that no two runs wait for each other's permits.
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

-- A run that has waited applies the present value of the limit to the runs behind it.
local function apply_limit(name, n)
  local known = redis.call('HGET', most_of(limits), name)
  if known and tonumber(known) ~= n then
    set_most(limits, name, n)
    admit(limits, name, returned, run_prefix, clock)
  end
end

-- Admits all runs that wait for a limit of this run that was removed from the settings.
local NO_LIMIT = 1000000000
local function lift_removed_limits(record, wanted)
  for _, name in ipairs(permits_of(redis.call('HGET', record, 'permits'))) do
    if not wanted[name] and not is_thread(name) then apply_limit(name, NO_LIMIT) end
  end
end

-- Returns false if the run has to wait for one of its limits. It then gives up its other permits, but keeps its thread and its
-- place. If it has waited before, it also keeps the permits of limits that come earlier in the fixed order: else two busy limits
-- could alternately park it for ever. The fixed order makes a deadlock impossible.
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
      admit(limits, name, returned, run_prefix, clock) -- there is room although runs wait if the limit was raised
      dropped = dropped + 1
      return false
    end
    has[name] = true
    if extra_fields.place then apply_limit(name, n) end -- guard: raised-limit-applied
  end
  if extra_fields.place then lift_removed_limits(record, has) end
  return true
end
