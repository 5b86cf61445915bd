-- Returns fields of a run's record; none if the key was overwritten with another type, which must not fail a whole batch.
local function read_fields(record, ...)
  local have = redis.pcall('HMGET', record, ...)
  return have.err and {} or have
end
