"""A store in a Redis server that several proxies share. Each proxy can continue the conversations of the other proxies.

Each operation is one script, which the server runs atomically. Therefore, no partial write is ever read, versions are
compared on the server, and the bounds hold across all proxies. Ages use the server's clock, not the proxies' clocks.
The keys consist of ``PREFIX`` and one of these names:

    r:PARTITION:ID    a hash: value, parent, version, size, names
    n:PARTITION:NAME  the ID of the record with this name
    used              a sorted set: the time when each record was last used
    u:PARTITION       the same for the records of one partition
    bytes             the sum of all sizes
    share:records     a sorted set: partitions by the number of their records
    share:bytes       a sorted set: partitions by the sum of their sizes

Nothing is retried automatically, because a write whose reply was lost might have succeeded. Connections that died while
idle are reopened. The server must not evict keys by its own policy (``maxmemory-policy noeviction``, its default). Its
configuration determines what data survives a restart (``appendonly yes``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from toolsim.stores.record import MAX_CHAIN, Conflict, Record, Size, Store, StoreError, StoreLimits, check, too_long

SECONDS = 2.0
"""Timeout of one operation, including the time to connect, in seconds."""
PREFIX = "toolsim:"
_MAX_CONNECTIONS = 64

# The beginning of all scripts. It parses the common arguments and defines the common functions.
_COMMON = """
local prefix, partition, now, seconds = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end
local used, bytes = prefix .. 'used', prefix .. 'bytes'
local function member_of(id) return partition .. ':' .. id end
local function age_of(id)
  local score = redis.call('ZSCORE', used, member_of(id))
  local age = score and now - tonumber(score)
  return age and age <= seconds and age or nil
end
local function add_to(share, whose, more)
  local key = prefix .. 'share:' .. share
  if tonumber(redis.call('ZINCRBY', key, more, whose)) <= 0 then redis.call('ZREM', key, whose) end
end
local function forget(member)
  local key = prefix .. 'r:' .. member
  local record = redis.call('HMGET', key, 'size', 'names')
  local whose, id = string.match(member, '^([^:]*):(.*)$')
  redis.call('ZREM', used, member)
  -- What an older toolsim wrote is in no share.
  local is_counted = redis.call('ZREM', prefix .. 'u:' .. whose, member) == 1
  if not record[1] then return end
  if is_counted then
    add_to('records', whose, -1)
    add_to('bytes', whose, -tonumber(record[1]))
  end
  for _, name in ipairs(cjson.decode(record[2])) do
    local pointer = prefix .. 'n:' .. whose .. ':' .. name
    if redis.call('GET', pointer) == id then redis.call('DEL', pointer) end
  end
  redis.call('DEL', key)
  redis.call('DECRBY', bytes, record[1])
end
local function expire()
  local old = redis.call('ZRANGEBYSCORE', used, '-inf', '(' .. string.format('%.6f', now - seconds), 'LIMIT', 0, 1000)
  for _, member in ipairs(old) do forget(member) end
  return #old
end
local function size()
  return {redis.call('ZCARD', used), tonumber(redis.call('GET', bytes) or '0')}
end
"""
_PUT = """
local max_records, max_bytes, max_chain = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local evicted = expire()
for id, version in pairs(cjson.decode(ARGV[8])) do
  local current = redis.call('HGET', prefix .. 'r:' .. member_of(id), 'version') or '0'
  if tonumber(current) ~= version then return {'conflict', id} end
end
for at = 9, #ARGV, 5 do
  local id, parent, length, names, value = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local key = prefix .. 'r:' .. member_of(id)
  local version = tonumber(redis.call('HGET', key, 'version') or '0') + 1
  if version > 1 then forget(member_of(id)) end
  local chain, each = {}, parent
  while each ~= '' and #chain < max_chain and age_of(each) do
    chain[#chain + 1] = each
    each = redis.call('HGET', prefix .. 'r:' .. member_of(each), 'parent') or ''
  end
  -- The oldest of a chain goes first.
  local own = prefix .. 'u:' .. partition
  for place = #chain, 1, -1 do
    local at = string.format('%.6f', now + (#chain - place) * 1e-6)
    redis.call('ZADD', used, at, member_of(chain[place]))
    redis.call('ZADD', own, 'XX', at, member_of(chain[place]))
  end
  local at_last = string.format('%.6f', now + #chain * 1e-6)
  redis.call('ZADD', used, at_last, member_of(id))
  redis.call('ZADD', own, at_last, member_of(id))
  add_to('records', partition, 1)
  add_to('bytes', partition, length)
  redis.call('HSET', key, 'value', value, 'parent', parent, 'version', version, 'size', length, 'names', names)
  redis.call('INCRBY', bytes, length)
  for _, name in ipairs(cjson.decode(names)) do redis.call('SET', prefix .. 'n:' .. partition .. ':' .. name, id) end
end
local total = size()
while total[1] > max_records or total[2] > max_bytes do
  local share = prefix .. 'share:' .. (total[1] > max_records and 'records' or 'bytes')
  local largest = redis.call('ZREVRANGE', share, 0, 0)
  local oldest = #largest > 0 and redis.call('ZRANGE', prefix .. 'u:' .. largest[1], 0, 0) or {}
  if #oldest == 0 then oldest = redis.call('ZRANGE', used, 0, 0) end
  if #oldest == 0 then break end
  forget(oldest[1])
  evicted = evicted + 1
  total = size()
end
return {'put', total[1], total[2], evicted}
"""
_CHAIN = """
local left, max_chain, id, found = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], {}
while id ~= '' and #found < max_chain do
  local key, age = prefix .. 'r:' .. member_of(id), age_of(id)
  if not age then break end
  left = left - redis.call('HSTRLEN', key, 'value')
  if left < 0 then return 'large' end
  local record = redis.call('HMGET', key, 'value', 'parent', 'version')
  if not record[1] then break end
  found[#found + 1] = {id, record[1], record[2], record[3], tostring(age)}
  id = record[2]
end
return found
"""
_FIND = """
local found = {}
for at = 5, #ARGV do
  local id = redis.call('GET', prefix .. 'n:' .. partition .. ':' .. ARGV[at])
  local age = id and age_of(id)
  if age then
    local record = redis.call('HMGET', prefix .. 'r:' .. member_of(id), 'value', 'parent', 'version')
    if record[1] then found[#found + 1] = {ARGV[at], id, record[1], record[2], record[3], tostring(age)} end
  end
end
return found
"""
_DELETE = """
expire()
local was = redis.call('EXISTS', prefix .. 'r:' .. member_of(ARGV[5]))
forget(member_of(ARGV[5]))
return was
"""
_SIZE = "return size()"


def open_store(place: str, bounds: StoreLimits) -> Store:
    """Return the store in the Redis server at the URL ``place``."""
    return RedisStore(place, bounds)


class RedisStore:
    """Stores records in the Redis server at ``url``.

    ``clock`` returns seconds since 1970. If it is None, the server's clock is used.
    """

    def __init__(
        self, url: str, bounds: StoreLimits, clock: Callable[[], float] | None = None, prefix: str = PREFIX
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._prefix = prefix
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._redis: Any = Redis.from_url(
            url,
            socket_timeout=SECONDS,
            socket_connect_timeout=SECONDS / 2,
            max_connections=_MAX_CONNECTIONS,
            retry=Retry(NoBackoff(), 0),
        )
        scripts = {"put": _PUT, "chain": _CHAIN, "find": _FIND, "delete": _DELETE, "size": _SIZE}
        self._scripts = {name: self._redis.register_script(_COMMON + text) for name, text in scripts.items()}

    async def put(self, partition: str, records: Sequence[Record], expected: Mapping[str, int] | None = None) -> Size:
        """Write records in one script. See ``Store.put``."""
        check(records, self._bounds)
        rows = [
            value
            for record in records
            for value in (record.id, record.parent, record.size, json.dumps(record.names), record.value)
        ]
        limits = (self._bounds.records, self._bounds.bytes, MAX_CHAIN)
        reply = await self._run("put", partition, *limits, json.dumps(expected or {}), *rows)
        if reply[0] == b"conflict":
            raise Conflict(f"{reply[1].decode()} has changed in the meantime")
        return Size(*reply[1:])

    async def chain(self, partition: str, id: str, max_bytes: int) -> list[Record]:
        """Return a record and the records that it continues. See ``Store.chain``."""
        found = await self._run("chain", partition, max_bytes, MAX_CHAIN, id)
        if found == b"large":
            raise too_long(max_bytes)
        return [_record(*row) for row in reversed(found)]

    async def find(self, partition: str, names: Iterable[str]) -> dict[str, Record]:
        """Return the records with these names. See ``Store.find``."""
        asked = list(dict.fromkeys(names))
        found = await self._run("find", partition, *asked) if asked else []
        return {name.decode(): _record(*row) for name, *row in found}

    async def delete(self, partition: str, id: str) -> bool:
        """Delete a record. See ``Store.delete``."""
        return bool(await self._run("delete", partition, id))

    async def size(self) -> Size:
        """Return the total size of all partitions. See ``Store.size``."""
        return Size(*await self._run("size", ""))

    async def close(self) -> None:
        """Wait for operations in flight, and disconnect. See ``Store.close``."""
        with suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(SECONDS):
                await self._idle.wait()
        with suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(SECONDS):
                await self._redis.aclose()

    async def _run(self, script: str, partition: str, *arguments: str | int | bytes) -> Any:
        now = f"{self._clock():.6f}" if self._clock is not None else ""
        common = (self._prefix, partition, now, self._bounds.seconds)
        self._under_way += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(SECONDS):
                return await self._scripts[script](args=[*common, *arguments])
        except TimeoutError as late:
            raise StoreError(f"the Redis server did not respond within {SECONDS:g} s") from late
        except (RedisError, OSError) as problem:
            raise StoreError(f"the Redis server: {problem}") from problem
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()


def _record(id: bytes, value: bytes, parent: bytes, version: bytes, age: bytes) -> Record:
    return Record(id.decode(), value, parent.decode(), (), int(version), float(age))
