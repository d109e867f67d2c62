-- Ends a hold if it is the owner's. If there is none, a request to acquire may
-- still be on its way: the grave stops it if it arrives within a minute.
--
-- KEYS  hold, grave of the owner
-- ARGV  owner, and anything more to dig the grave in any case
-- Reply 1 if a hold was ended, 0 if there was none

local hold = redis.call('GET', KEYS[1])
local ours = hold and string.sub(hold, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
if ours then
  redis.call('DEL', KEYS[1])
end
if not ours or ARGV[2] then
  redis.call('SET', KEYS[2], '', 'PX', 60000)
end
return ours and 1 or 0
