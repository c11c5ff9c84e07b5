from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError

from domain.values import Owner
from domain.webhook.delivery import AT_ONCE, DeliveryResult, Webhook, webhook_id
from ops.clock import SystemClock
from ops.webhooks.sender import HttpWebhookSender
from tests.support.clients.webhook_receiver import Received, Receiver, Reply, receiver
from tests.support.clients.webhook_signatures import verify
from tests.support.polling import scaled, unscaled

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def hook(url: str) -> Webhook:
    return Webhook(
        id=webhook_id("event", url),
        subject="job-1",
        event="job.completed",
        url=url,
        host="",
        position=1,
        body=json.dumps({"type": "job.completed"}).encode(),
        created_at="",
    )


def send(url: str, **options: Any) -> DeliveryResult:
    async def run() -> DeliveryResult:
        given: dict[str, Any] = {
            "secret": SECRET,
            "allow_hosts": ("127.0.0.1",),
            "timeout_s": 30.0,
        } | options
        sender = HttpWebhookSender(clock=SystemClock(), **given)
        try:
            return await sender.send(hook(url))
        finally:
            await sender.close()

    return asyncio.run(run())


def test_receiver_gets_a_message_that_it_can_verify() -> None:
    with receiver() as there:
        assert send(there.url("/a/b?c=d")) == DeliveryResult(status=200)
        (got,) = there.received
    assert got.path == "/a/b?c=d"
    assert got.headers["host"] == f"127.0.0.1:{there.port}"
    assert got.headers["content-type"] == "application/json"
    assert got.id == hook(there.url("/a/b?c=d")).id
    assert verify(SECRET, got.headers, got.body) == {"type": "job.completed"}
    with pytest.raises(InvalidWebhookSignatureError):
        verify(SECRET, got.headers, got.body + b" ")


def test_message_carries_a_signature_for_each_secret() -> None:
    new = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    with receiver() as there:
        send(there.url(), secret=f"{new} {SECRET}")
        (got,) = there.received
    for secret in (new, SECRET):
        assert verify(secret, got.headers, got.body) == {"type": "job.completed"}
    with pytest.raises(InvalidWebhookSignatureError):
        verify("whsec_" + base64.b64encode(bytes(32)).decode(), got.headers, got.body)


def test_lookups_that_hang_are_counted_and_delay_no_other() -> None:
    answered = threading.Event()

    def resolver(host: str, _port: int) -> Sequence[str]:
        if host.startswith("dead"):
            assert answered.wait(scaled(60))
        return ["127.0.0.1"]

    async def run() -> None:
        sender = HttpWebhookSender(secret=SECRET, clock=SystemClock(), resolver=resolver)
        dead = [
            replace(hook(f"http://dead-{number}.example/"), owner=Owner("alice"))
            for number in range(AT_ONCE - 1)
        ]
        tries = [asyncio.create_task(sender.send(one)) for one in dead]
        answer = await sender.send(hook("http://alive.example/"))
        assert answer.is_final, answer.error  # its address is refused
        assert not sender.hanging_lookups()
        for one in tries:
            one.cancel()  # as at the end of their time
        await asyncio.wait(tries)
        assert sender.hanging_lookups() == {"alice": AT_ONCE - 1}
        answered.set()
        while sender.hanging_lookups():
            await sender.send(hook("http://alive.example/"))
        await sender.close()

    asyncio.run(run())


def test_redirects_are_not_followed() -> None:
    with receiver() as inner, receiver(lambda _: Reply(307, {"location": inner.url()})) as outer:
        answer = send(outer.url())
        assert answer.status == 307
        assert answer.error is not None
        assert "redirects" in answer.error
        assert not answer.is_final
        assert inner.received == []


@pytest.mark.parametrize(
    ("value", "least_s", "most_s"),
    [
        ("120", 120, 120),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 3600, 1e11),
        ("Fri, 01 Jan 1999 00:00:00 GMT", 0, 0),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(
    value: str, least_s: float, most_s: float
) -> None:
    with receiver(lambda _: Reply(429, {"retry-after": value})) as there:
        wait_s = send(there.url()).retry_after_s
    assert wait_s is not None
    assert least_s <= wait_s <= most_s


@pytest.mark.parametrize("value", ["soon", "-5", "1.5", "9" * 100, ""])
def test_a_retry_after_that_says_nothing_is_left_aside(value: str) -> None:
    with receiver(lambda _: Reply(503, {"retry-after": value})) as there:
        assert send(there.url()).retry_after_s is None


def test_a_receiver_that_does_not_answer_takes_the_timeout_and_no_longer() -> None:
    held = threading.Event()
    with receiver(lambda _: Reply(held=held)) as there:
        answer = send(there.url(), timeout_s=0.2)
        held.set()
    assert answer == DeliveryResult(error="no answer within 0.2 s")


def test_a_head_that_drips_ends_at_the_timeout() -> None:
    stopped = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            try:
                while not stopped.wait(unscaled(0.02, reason="pace of the drops")):
                    connection.sendall(b"x-a: b\r\n")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        answer = send(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.5)
        stopped.set()
        thread.join()
    assert answer == DeliveryResult(error="no answer within 0.5 s")


def test_a_port_without_a_listener_is_a_failure_that_may_pass() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can have it
        answer = send(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert answer.status is None
    assert answer.error is not None
    assert answer.error.startswith("cannot connect to 127.0.0.1")
    assert not answer.is_final


def test_what_is_not_http_is_a_failure() -> None:
    def babble(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"\x00\x01 not http\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=babble, args=(listener,))
        thread.start()
        answer = send(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()
    assert answer.status is None
    assert answer.error


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "100.64.0.1", "::1", "::ffff:10.0.0.1"]
)
def test_a_name_that_leads_inside_is_refused_for_good(address: str) -> None:
    answer = send("http://hooks.example.com/", resolver=lambda _host, _port: [address])
    assert answer.is_final
    assert answer.error is not None
    assert "hooks.example.com" in answer.error
    assert "webhooks.allow_hosts" in answer.error


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0177.0.0.1", "0x7f.1", "0x7f000001", "0"])
def test_no_spelling_of_an_address_hides_it_from_the_systems_resolver(host: str) -> None:
    answer = send(f"http://{host}:9/", allow_hosts=())
    assert answer.is_final
    assert answer.error is not None
    assert f"refused: {host}" in answer.error


def test_one_address_inside_among_public_ones_is_enough() -> None:
    answer = send("http://a.example/", resolver=lambda _host, _port: ["93.184.216.34", "10.0.0.1"])
    assert answer.is_final


def test_a_literal_that_was_allowed_once_is_judged_again() -> None:
    with receiver() as there:
        answer = send(there.url(), allow_hosts=())
        assert there.received == []
    assert answer.is_final


class Rebinding:
    """Tells an allowed address first and another one ever after."""

    def __init__(self, first: str, then: str) -> None:
        self._answers = [first]
        self._then = then
        self.asked = 0

    def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.asked += 1
        return [self._answers.pop() if self._answers else self._then]


def test_the_connection_goes_to_the_address_that_was_judged(there: Receiver) -> None:
    # Nothing but the sender's own resolver knows this name, so reaching the receiver proves that
    # the connection used its answer, and the Host header that the name went along.
    resolver = Rebinding("127.0.0.1", "203.0.113.1")
    url = f"http://hooks.invalid:{there.port}/x"
    assert send(url, resolver=resolver, allow_hosts=("hooks.invalid",)) == DeliveryResult(
        status=200
    )
    assert resolver.asked == 1
    assert there.received[0].headers["host"] == f"hooks.invalid:{there.port}"


def test_tls_asks_for_the_name_of_the_url() -> None:
    hello: list[bytes] = []

    def listen(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            hello.append(connection.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, args=(listener,))
        thread.start()
        answer = send(
            f"https://hooks.invalid:{listener.getsockname()[1]}/",
            resolver=lambda _host, _port: ["127.0.0.1"],
            allow_hosts=("hooks.invalid",),
        )
        thread.join()
    assert b"hooks.invalid" in hello[0]
    assert answer.error
    assert not answer.is_final


def test_a_second_address_is_tried_where_the_first_does_not_answer(there: Receiver) -> None:
    answer = send(
        f"http://hooks.invalid:{there.port}/",
        resolver=lambda _host, _port: ["::1", "127.0.0.1"],
        allow_hosts=("hooks.invalid",),
    )
    assert answer == DeliveryResult(status=200)


def test_a_name_without_an_address_may_have_one_later() -> None:
    def fail(host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, f"no {host}")

    answer = send("http://hooks.invalid/", resolver=fail)
    assert answer.error is not None
    assert answer.error.startswith("hooks.invalid cannot be resolved")
    assert not answer.is_final


@pytest.fixture
def there() -> Any:
    with receiver(_ok) as running:
        yield running


def _ok(_: Received) -> Reply:
    return Reply()
