-- Grants a name to an owner if nobody holds it.
--
-- KEYS  hold, grave of the owner, and the token counter if a token is wanted
-- ARGV  owner, note, time to live in ms
-- Reply {hold, ms left} if the name is held; nil if the owner was released
--       before this request came; else the token, 0 if none was wanted

local now = redis.call('MGET', unpack(KEYS))
if now[1] then
  return {now[1], redis.call('PTTL', KEYS[1])}
end
if now[2] then
  return false
end

local token = 0
if KEYS[3] then
  -- The clock is the floor of every token: a counter that was lost, that has
  -- expired, or that came back from an old snapshot gives no number again. It
  -- expires by its own value, which is never below the clock: one that ran
  -- ahead and was corrected must not shorten its life.
  local time = redis.call('TIME')
  token = math.max((tonumber(now[3]) or 0) + 1, time[1] * 1000000 + time[2])
  if token >= 2^53 then
    return redis.error_reply('ERR the token counter has reached 2^53: ' .. KEYS[3])
  end
  redis.call('SET', KEYS[3], string.format('%.0f', token),
    'PXAT', string.format('%.0f', math.floor(token / 1000) + 7 * 24 * 3600 * 1000))
end

local hold = ARGV[1] .. ' ' .. string.format('%.0f', token) .. ' ' .. ARGV[2]
if not redis.call('SET', KEYS[1], hold, 'NX', 'PX', ARGV[3]) then
  return redis.error_reply('WRONGTYPE the key is in other use: ' .. KEYS[1])
end
return token
