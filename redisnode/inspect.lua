-- KEYS  hold
-- Reply {hold, ms left}, or nil if there is none

local hold = redis.call('GET', KEYS[1])
return hold and {hold, redis.call('PTTL', KEYS[1])}
