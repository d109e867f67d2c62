-- Sets the time to live of a hold if it is the owner's.
--
-- KEYS  hold
-- ARGV  owner, time to live in ms
-- Reply 1 if it was set, 0 if there is no hold, -1 if it is someone else's

local hold = redis.call('GET', KEYS[1])
if not hold then
  return 0
end
if string.sub(hold, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then
  return -1
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
