"""Budgets that all connections share: bytes of bodies, and connections of one peer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count

import pytest

from api.access.access_control import AccessControl
from api.http.messages import KEYLESS, UNIDENTIFIED, Caller, Reply, Request
from api.http_server.limits import (
    BODY_COPIES,
    FREE_BYTES,
    BodyShare,
    BrokenFraming,
    PeerCounts,
    ServerLimits,
)
from domain.shares import Shares
from ops.settings.api_keys import KeyScope
from ops.settings.service import ServerSettings
from tests.support.builders.http_connection import MemoryHost, play

MIB = 2**20


def post(path: str, size_bytes: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size_bytes}\r\n\r\n"
    return head.encode() + b"a" * size_bytes


def chunked(path: str, size_bytes: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + b"%x\r\n" % size_bytes + b"a" * size_bytes + b"\r\n0\r\n\r\n"


async def accept(request: Request) -> Reply:
    return Reply(body=json.dumps(len(request.body)).encode())


def test_body_is_counted_while_its_reply_lasts() -> None:
    async def run() -> list[int]:
        held: list[int] = []

        async def answer(request: Request) -> Reply:
            held.append(host.bodies.held)
            return await accept(request)

        host = MemoryHost(answer, ServerLimits(bodies_bytes_max=8 * MIB))
        await play(host, [post("/x", MIB)])
        await play(host, [post("/x", FREE_BYTES)])
        return [*held, host.bodies.held]

    assert asyncio.run(run()) == [(MIB - FREE_BYTES) * BODY_COPIES, 0, 0]


def test_body_beyond_the_budget_is_refused_and_a_small_one_is_not() -> None:
    async def run() -> tuple[bytes, bytes, int]:
        host = MemoryHost(accept, ServerLimits(bodies_bytes_max=8 * MIB, linger_s=0.01))
        other = BodyShare(host.bodies, "", KEYLESS)
        other.take(2 * MIB + FREE_BYTES)
        large = await play(host, [post("/v1/messages", MIB)])
        small = await play(host, [post("/v1/messages", FREE_BYTES)])
        other.give_back()
        return large, small, host.bodies.held

    large, small, held = asyncio.run(run())
    assert large.startswith(b"HTTP/1.1 503 ")
    assert b"x-should-retry: true" in large
    assert b"retry-after" in large
    assert b'"type": "overloaded_error"' in large
    assert small.startswith(b"HTTP/1.1 200 ")
    assert held == 0


def test_announced_bytes_take_no_room_before_they_come() -> None:
    memory = Shares(MIB * BODY_COPIES)
    BodyShare(memory, "", KEYLESS)
    second = BodyShare(memory, "", KEYLESS)
    second.take(MIB)
    with pytest.raises(BrokenFraming, match="repeat"):
        second.take(MIB)


def fill(memory: Shares, address: str, caller: Caller) -> tuple[int, BrokenFraming]:
    """Let one client send as much as it may in bodies of a MiB; the bodies stay unfinished."""
    for bodies in count():
        share = BodyShare(memory, address, caller)
        try:
            share.take(MIB + FREE_BYTES)
        except BrokenFraming as error:
            return bodies, error
    raise AssertionError


def key(name: str) -> Caller:
    return Caller(name=name, scope=KeyScope.OWN, is_alone=False)


def test_unfinished_bodies_of_one_key_leave_room_for_other_keys() -> None:
    memory = Shares(32 * MIB * BODY_COPIES)
    bodies, refusal = fill(memory, "127.0.0.1", key("ann"))
    assert (bodies, refusal.status, refusal.code) == (16, 429, "too_many_bodies_of_one")
    assert str(16 * MIB * BODY_COPIES) in refusal.message
    assert refusal.retryable
    assert fill(memory, "127.0.0.1", key("bob"))[0] == 8
    assert fill(memory, "127.0.0.1", key("cid"))[0] > 0


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("127.0.0.1", UNIDENTIFIED),
        ("192.0.2.7", UNIDENTIFIED),
        ("192.0.2.7", KEYLESS),
        ("192.0.2.7", Caller(name="only", scope=KeyScope.ADMIN, is_alone=True)),
    ],
)
def test_unfinished_bodies_of_one_address_leave_room_for_others(
    address: str, caller: Caller
) -> None:
    memory = Shares(32 * MIB * BODY_COPIES)
    bodies, refusal = fill(memory, address, caller)
    assert (bodies, refusal.code) == (16, "too_many_bodies_of_one")
    assert fill(memory, "198.51.100.1", key("bob"))[0] == 8


def test_only_client_of_this_machine_may_use_the_whole_budget() -> None:
    bodies, refusal = fill(Shares(32 * MIB * BODY_COPIES), "127.0.0.1", KEYLESS)
    assert (bodies, refusal.status, refusal.code) == (32, 503, "too_many_bodies")


def test_connection_counts_a_body_against_its_key() -> None:
    keys = {name: f"{name}-" + name[0] * 24 for name in ("ann", "bob")}
    settings = ServerSettings.model_validate(
        {"allowed_hosts": ["x"], "api_keys": [f"{name}={key}" for name, key in keys.items()]}
    )
    limits = ServerLimits(bodies_bytes_max=4 * MIB * BODY_COPIES, linger_s=0.01)

    async def send(host: MemoryHost, name: str) -> bytes:
        request = post("/v1/messages", MIB).replace(
            b"host: x\r\n", f"host: x\r\nx-api-key: {keys[name]}\r\n".encode()
        )
        return await play(host, [request])

    async def run() -> tuple[bytes, bytes]:
        access = AccessControl.from_settings(settings, connections_max=limits.connections_max)
        host = MemoryHost(accept, limits, access)
        BodyShare(host.bodies, "127.0.0.1", key("ann")).take(2 * MIB)
        return await send(host, "ann"), await send(host, "bob")

    ann, bob = asyncio.run(run())
    assert ann.startswith(b"HTTP/1.1 429 ")
    assert b"x-should-retry: true" in ann
    assert b"retry-after: " in ann
    assert b'"type": "rate_limit_error"' in ann
    assert bob.startswith(b"HTTP/1.1 200 ")


def test_share_is_free_again_once_the_bodies_are_gone() -> None:
    memory = Shares(2 * MIB * BODY_COPIES)
    for _ in range(3):
        share = BodyShare(memory, "192.0.2.7", key("ann"))
        share.take(MIB + FREE_BYTES)
        share.give_back()
    assert memory.held == 0


@pytest.mark.parametrize("send", [post, chunked])
def test_only_uploads_may_be_large(send: Callable[[str, int], bytes]) -> None:
    limits = ServerLimits(
        request_bytes_max=1000,
        body_bytes_max=5000,
        upload_paths=frozenset({"/v1/files"}),
        linger_s=0.01,
    )

    def status(path: str, size_bytes: int) -> bytes:
        return asyncio.run(play(MemoryHost(accept, limits), [send(path, size_bytes)]))[9:12]

    assert status("/v1/messages", 1000) == b"200"
    assert status("/v1/messages", 1001) == b"413"
    assert status("/v1/files", 5000) == b"200"
    assert status("/v1/%66iles/", 5000) == b"200"
    assert status("/v1/files", 5001) == b"413"
    assert status("/v1/files/x", 5000) == b"413"


def test_replies_forbid_guesses_of_their_type_and_other_sites() -> None:
    reply = asyncio.run(play(MemoryHost(accept, ServerLimits()), [post("/x", 1)]))
    assert b"\r\nx-content-type-options: nosniff\r\n" in reply
    assert b"\r\ncross-origin-resource-policy: same-origin\r\n" in reply


LIMITS = ServerLimits(
    connections_max=10, loopback_connections_max=6, peer_connections_max=2, refusals_max=1
)


@pytest.mark.parametrize(
    ("addresses", "most"),
    [
        (["127.0.0.1"] * 8, 6),
        (["::1"] * 8, 6),
        (["::ffff:127.0.0.1", "127.0.0.1"] * 4, 6),
        (["127.0.0.1", "127.0.0.9", "::1", ""] * 2, 6),
        (["192.0.2.7"] * 8, 2),
        (["::ffff:192.0.2.7", "192.0.2.7"] * 4, 2),
        ([f"2001:db8::{number}" for number in range(8)], 2),
        (["fe80::1%eth0", "fe80::2"] * 4, 2),
    ],
)
def test_peer_gets_no_more_than_its_connections(addresses: list[str], most: int) -> None:
    counts = PeerCounts(LIMITS)
    found = [counts.enter(address) for address in addresses]
    assert [refusal is None for refusal, _ in found] == [n < most for n in range(len(found))]
    assert [is_cut for _, is_cut in found] == [n > most for n in range(len(found))]
    refusal = found[most][0]
    assert refusal is not None
    assert (refusal.status, refusal.code) == (429, "too_many_connections_of_peer")
    assert counts.enter("198.51.100.1")[0] is None
    for address in [*addresses, "198.51.100.1"]:
        counts.leave(address)
    assert counts.total == 0
    assert counts.enter(addresses[0]) == (None, False)


def test_all_peers_together_get_no_more_than_all_connections() -> None:
    counts = PeerCounts(LIMITS)
    found = [counts.enter(f"192.0.2.{number}")[0] for number in range(11)]
    assert found[:10] == [None] * 10
    assert found[10] is not None
    assert (found[10].status, found[10].code) == (503, "too_many_connections")
