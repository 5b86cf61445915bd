-- What a run's record says. One that somebody overwrote by another type says nothing: it must not fail a whole batch.
local function read_fields(record, ...)
  local have = redis.pcall('HMGET', record, ...)
  return have.err and {} or have
end
