"""Lua scripts: the atomic operations on the queues of ``dramatiq_queue``."""

from __future__ import annotations

# KEYS: ready, messages, wakeup, heartbeats, agent ring, agent queue.
# ARGV: id, message, prefix of the unacked sets, queue, agent, urgency.
# A message whose id neither waits nor is unacknowledged was stranded by a crash; its id is queued
# again. Ids sort by acceptance, and members of one score (urgency) by their names.
ENQUEUE = """
if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) == 0 then
  if redis.call('ZSCORE', KEYS[6], ARGV[1]) then return 0 end
  if redis.call('LPOS', KEYS[1], ARGV[1]) then return 0 end
  for _, consumer in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
    local unacked = ARGV[3] .. consumer .. '.' .. ARGV[4]
    if redis.call('SISMEMBER', unacked, ARGV[1]) == 1 then return 0 end
  end
end
redis.call('ZADD', KEYS[6], -ARGV[6], ARGV[1])
if not redis.call('LPOS', KEYS[5], ARGV[5]) then redis.call('RPUSH', KEYS[5], ARGV[5]) end
if redis.call('LLEN', KEYS[3]) == 0 then redis.call('RPUSH', KEYS[3], '1') end
return 1
"""
# KEYS: ready, messages, heartbeats, agent ring, agent queue. ARGV: id, prefix of the unacked sets,
# queue, agent, heartbeat timeout in ms. A message of a consumer that is gone would otherwise stay
# until another worker takes from this queue, which for the line of a model may be never.
REMOVE = """
local found = redis.call('ZREM', KEYS[5], ARGV[1])
if found == 1 then
  if redis.call('EXISTS', KEYS[5]) == 0 then redis.call('LREM', KEYS[4], 0, ARGV[4]) end
else
  found = redis.call('LREM', KEYS[1], 1, ARGV[1])
end
if found == 0 then
  local time = redis.call('TIME')
  local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[5]
  local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', until_ms))
  for _, consumer in ipairs(gone) do
    found = found + redis.call('SREM', ARGV[2] .. consumer .. '.' .. ARGV[3], ARGV[1])
  end
end
if found == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
"""
# KEYS: ready, agent ring. ARGV: how many ids the ready list shall have, prefix of agent queues.
# An agent that still has waiting ids moves to the end of the ring.
MAKE_READY = """
while redis.call('LLEN', KEYS[1]) < tonumber(ARGV[1]) do
  local agent = redis.call('LPOP', KEYS[2])
  if not agent then break end
  local waiting = ARGV[2] .. agent
  local first = redis.call('ZRANGE', waiting, 0, 0)[1]
  if first then
    redis.call('ZREM', waiting, first)
    redis.call('RPUSH', KEYS[1], first)
    if redis.call('EXISTS', waiting) == 1 then redis.call('RPUSH', KEYS[2], agent) end
  end
end
"""
# KEYS: ready, messages, unacked, wakeup. ARGV: ids that the consumer has really fetched.
# Ids sort by creation, so the oldest comes to the front.
REQUEUE = """
local fetched = {}
for _, id in ipairs(ARGV) do fetched[id] = true end
local ids = redis.call('SMEMBERS', KEYS[3])
table.sort(ids, function(a, b) return a > b end)
local count = 0
for _, id in ipairs(ids) do
  if not fetched[id] then
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
# KEYS: ready, messages, unacked, heartbeats, agent ring. ARGV: consumer, prefix of agent queues,
# then id and message of each job that the consumer has. Records what an emptied broker has
# forgotten. A job that another process has queued since is taken back, unless a consumer has it.
RESTORE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[4], string.format('%.0f', now), ARGV[1])
for at = 3, #ARGV, 2 do
  local id, waits = ARGV[at], redis.call('LREM', KEYS[1], 0, ARGV[at])
  for _, agent in ipairs(redis.call('LRANGE', KEYS[5], 0, -1)) do
    waits = waits + redis.call('ZREM', ARGV[2] .. agent, id)
  end
  if redis.call('HSETNX', KEYS[2], id, ARGV[at + 1]) == 1 or waits > 0 then
    redis.call('SADD', KEYS[3], id)
  end
end
"""
# KEYS: ready, wakeup, agent ring, consumers of the queue. ARGV: prefix of the unacked sets, queue,
# consumer, LIVE_MS. Returns -1 to the only live consumer, else how many messages it may take until
# another consumer has fewer unacknowledged ones. If that is 0, another consumer is woken.
FAIR_SHARE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since = string.format('%.0f', now - ARGV[4])
local least = -1
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. since)
redis.call('ZADD', KEYS[4], string.format('%.0f', now), ARGV[3])
local live = redis.call('ZRANGE', KEYS[4], 0, -1)
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
# KEYS: ready, wakeup, agent ring.
WAKE = """
if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 and redis.call('LLEN', KEYS[2]) == 0 then
  redis.call('RPUSH', KEYS[2], '1')
end
"""
# Prepended to Dramatiq's script, which stamps heartbeats with the worker's clock. A machine whose
# clock is ahead would otherwise requeue the unacknowledged messages of the others.
SERVER_CLOCK = b"""
local time = redis.call('TIME')
ARGV[2] = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
"""
