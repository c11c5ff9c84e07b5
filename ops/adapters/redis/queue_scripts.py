"""What Redis does with the queues of ``dramatiq_queue`` at one stroke each."""

from __future__ import annotations

# KEYS: called, messages, bell, heartbeats, ring, line.
# ARGV: id, message, prefix of the in-hand sets, queue, agent.
# An id with a message that neither waits nor is in anyone's hand was stranded by a crash; it is
# queued again. Ids sort by acceptance, and members of one score by their names.
ENQUEUE = """
if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) == 0 then
  if redis.call('ZSCORE', KEYS[6], ARGV[1]) then return 0 end
  if redis.call('LPOS', KEYS[1], ARGV[1]) then return 0 end
  for _, consumer in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
    local in_hand = ARGV[3] .. consumer .. '.' .. ARGV[4]
    if redis.call('SISMEMBER', in_hand, ARGV[1]) == 1 then return 0 end
  end
end
redis.call('ZADD', KEYS[6], 0, ARGV[1])
if not redis.call('LPOS', KEYS[5], ARGV[5]) then redis.call('RPUSH', KEYS[5], ARGV[5]) end
if redis.call('LLEN', KEYS[3]) == 0 then redis.call('RPUSH', KEYS[3], '1') end
return 1
"""
# KEYS: called, messages, ring, line. ARGV: id, agent.
REMOVE = """
if redis.call('ZREM', KEYS[4], ARGV[1]) == 1 then
  if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('LREM', KEYS[3], 0, ARGV[2]) end
elseif redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
  return 0
end
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
"""
# KEYS: called, ring. ARGV: how many shall be called, what the names of lines begin with.
# An agent that still waits goes to the end of the ring, where a new one stands too.
CALL = """
while redis.call('LLEN', KEYS[1]) < tonumber(ARGV[1]) do
  local agent = redis.call('LPOP', KEYS[2])
  if not agent then break end
  local line = ARGV[2] .. agent
  local first = redis.call('ZRANGE', line, 0, 0)[1]
  if first then
    redis.call('ZREM', line, first)
    redis.call('RPUSH', KEYS[1], first)
    if redis.call('EXISTS', line) == 1 then redis.call('RPUSH', KEYS[2], agent) end
  end
end
"""
# KEYS: called, messages, in hand, bell. ARGV: what is really held.
# Ids sort by creation, so the oldest comes to the front.
REQUEUE = """
local held = {}
for _, id in ipairs(ARGV) do held[id] = true end
local ids = redis.call('SMEMBERS', KEYS[3])
table.sort(ids, function(a, b) return a > b end)
local count = 0
for _, id in ipairs(ids) do
  if not held[id] then
    redis.call('SREM', KEYS[3], id)
    if redis.call('HEXISTS', KEYS[2], id) == 1 then
      redis.call('LREM', KEYS[1], 0, id)
      redis.call('LPUSH', KEYS[1], id)
      count = count + 1
    end
  end
end
if count > 0 and redis.call('LLEN', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '1') end
return count
"""
# KEYS: called, bell, ring, heartbeats. ARGV: prefix of the in-hand sets, queue, consumer, LIVE_MS.
# Returns -1 to a consumer that is alone, else how many messages it may take before another one has
# fewer in hand. Where that is none, another one is called.
SHARE = """
local time = redis.call('TIME')
local since = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[4]
local least = -1
local live = redis.call('ZRANGEBYSCORE', KEYS[4], string.format('%.0f', since), '+inf')
for _, other in ipairs(live) do
  if other ~= ARGV[3] then
    local count = redis.call('SCARD', ARGV[1] .. other .. '.' .. ARGV[2])
    if least < 0 or count < least then least = count end
  end
end
if least < 0 then return -1 end
local share = least - redis.call('SCARD', ARGV[1] .. ARGV[3] .. '.' .. ARGV[2]) + 1
if share > 0 then return share end
if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 and redis.call('LLEN', KEYS[2]) == 0 then
  redis.call('RPUSH', KEYS[2], '1')
end
return 0
"""
# KEYS: called, bell, ring.
RING = """
if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 and redis.call('LLEN', KEYS[2]) == 0 then
  redis.call('RPUSH', KEYS[2], '1')
end
"""
# Goes before Dramatiq's own script, which takes the worker's clock for the heartbeats. Of machines
# whose clocks differ, the one that is ahead would take what the other has in hand.
SERVER_CLOCK = b"""
local time = redis.call('TIME')
ARGV[2] = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
"""
