-- Grants a name to an owner if nobody holds it.
--
-- KEYS  hold, counter, grave of the owner
-- ARGV  owner, note, time to live in ms, "1" if a token is wanted
-- Reply {hold, ms left} if the name is held; nil if the owner was released
--       before this request came; else the token, 0 if none was wanted

local hold = redis.call('GET', KEYS[1])
if hold then
  return {hold, redis.call('PTTL', KEYS[1])}
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  return false
end

local token = 0
if ARGV[4] == '1' then
  -- The clock is the floor, so that a counter that was lost or has expired
  -- does not begin again. It expires by its own value and not by the clock: a
  -- clock that ran ahead and was corrected must not shorten its life.
  local time = redis.call('TIME')
  local last = tonumber(redis.call('GET', KEYS[2]) or '0')
  token = math.max(last + 1, time[1] * 1000000 + time[2])
  if token >= 2^53 then
    return redis.error_reply('ERR the token counter ' .. KEYS[2] .. ' has reached 2^53')
  end
  local idle = math.floor(token / 1000) + 7 * 24 * 3600 * 1000
  redis.call('SET', KEYS[2], string.format('%.0f', token), 'PXAT', string.format('%.0f', idle))
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', token) .. ' ' .. ARGV[2], 'PX', ARGV[3])
return token
