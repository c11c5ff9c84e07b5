"""The mixed load: requests, ways to send them, client threads, and a receiver of webhooks."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from bench.chaos.client import Client, OpenStreams
from bench.chaos.history import Kind, Operation, RequestSpec, WebhookMessage
from tests.support.clients.webhook_receiver import Received, Reply, receiver
from tests.support.clients.webhook_signatures import verify

#: Shares of messages that are refused, and that are answered after the sender's patience.
_REFUSED: Final = 0.2
_LATE: Final = 0.05
_KEY_BYTES: Final = 32


class HookReceiver:
    """What a receiver got.

    Args:
        url: Where messages go.
        seed: Determines the secret.

    Attributes:
        url: As given.
        messages: Every message in order, also those that were refused or answered too late.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.messages: list[WebhookMessage] = []
        key = random.Random(f"secret {seed}").randbytes(_KEY_BYTES)
        self._secret = f"whsec_{base64.b64encode(key).decode()}"

    @property
    def environment(self) -> dict[str, str]:
        """The settings of a service that sends to this receiver."""
        return {
            "SEMANTIC_WEBHOOKS__SECRET": self._secret,
            "SEMANTIC_WEBHOOKS__ALLOW_HOSTS": '["127.0.0.1"]',
        }

    @property
    def constants(self) -> dict[str, object]:
        """Constants to plant, so that messages come soon after a fault."""
        return {
            "domain.webhook.delivery.TIMEOUT_S": 2.0,
            "domain.webhook.delivery.SCHEDULE_S": [0.3] * 20 + [2.0] * 80,
        }

    def record(self, one: Received) -> None:
        """Keep a message."""
        content = json.loads(one.body)
        try:
            is_signed = bool(verify(self._secret, one.headers, one.body))
        except ValueError:
            is_signed = False
        self.messages.append(
            WebhookMessage(
                id=one.id,
                # The log has the batch under another prefix than its protocol.
                subject=content["data"]["id"].replace("msgbatch_", "batch-"),
                type=content["type"],
                digest=hashlib.sha256(one.body).hexdigest(),
                is_signed=is_signed,
            )
        )


@contextmanager
def hook_receiver(seed: int) -> Iterator[HookReceiver]:
    """Run a receiver within the block.

    Args:
        seed: Determines which messages are refused or late, and the secret.
    """
    rng, lock, late = random.Random(f"receiver {seed}"), threading.Lock(), threading.Event()

    def answer(one: Received) -> Reply:
        with lock:
            there.record(one)
            drawn = rng.random()
        if drawn < _LATE:
            return Reply(held=late)
        return Reply(503 if drawn < _LATE + _REFUSED else 204)

    with receiver(answer) as running:
        there = HookReceiver(running.url(), seed)
        try:
            yield there
        finally:
            late.set()


#: Long enough for one KV block on disk, which the next attempt restores.
_PREAMBLE: Final = "The quick brown fox jumps over the lazy dog. " * 28
_QUESTIONS: Final = (
    "Tell me a long story about a fox.",
    "What is the capital of France?",
    "What can you do?",
    "Tell me a long story about a lighthouse.",
    "Count from one to twenty.",
)
_KINDS: Final = {Kind.MESSAGES: 4, Kind.STREAMED: 4, Kind.POLLED: 2, Kind.CANCELLED: 1}
#: Kinds of a load that has a receiver of webhooks.
_MIXED: Final = {**_KINDS, Kind.RESPONSES: 3, Kind.TOOLS: 3, Kind.BATCH: 1}
_CITIES: Final = ("Paris", "Rome", "London", "Madrid", "Berlin", "Vienna", "Oslo", "Lisbon")
#: Most lines of a batch.
_LINES_MAX: Final = 5
#: Share of operations with an idempotency key; others rely on the service's deduplication.
_KEYED: Final = 0.8
PROBE: Final = RequestSpec(prompt="Say hello.", max_tokens=1, temperature=0, seed=0)


def sample_requests(seed: int, size: int) -> tuple[RequestSpec, ...]:
    """Return different requests, every other one greedy; some have a long prompt."""
    rng = random.Random(f"repertoire {seed}")
    return tuple(
        RequestSpec(
            prompt=f"{_PREAMBLE if number % 4 == 3 else ''}({number}) {rng.choice(_QUESTIONS)}",
            max_tokens=rng.randint(24, 160),
            temperature=float(number % 2),
            seed=rng.randrange(2**31),
        )
        for number in range(size)
    )


def sample_calls(seed: int, size: int) -> tuple[RequestSpec, ...]:
    """Return different requests whose answer is a tool call, every other one greedy."""
    rng = random.Random(f"calls {seed}")
    return tuple(
        RequestSpec(
            prompt=f"What is the weather in {city}?",
            max_tokens=120,
            temperature=float(number % 2),
            seed=rng.randrange(2**31),
            calls_tool=True,
        )
        for number, city in enumerate(_CITIES[:size])
    )


class Load:
    """Client threads that work until ``finish``.

    Args:
        base_url: Address of the service.
        seed: Determines each client's requests and the ways to send them.
        requests: The requests to choose from.
        clients: Number of client threads; with none, only batches are sent.
        hook: Receiver of webhooks; with it the load also has responses, tool calls and batches.
    """

    def __init__(
        self,
        base_url: str,
        *,
        seed: int,
        requests: Sequence[RequestSpec],
        clients: int,
        hook: str | None = None,
    ) -> None:
        self.streams = OpenStreams()
        self._base_url = base_url
        self._seed = seed
        self._requests = requests
        self._calls = sample_calls(seed, len(requests))
        self._hook = hook
        self._stopped = threading.Event()
        self._clients = clients
        self._pool = ThreadPoolExecutor(max(1, clients), thread_name_prefix="chaos")
        self._done: list[Operation] = []
        self._futures: list[Future[None]] = [
            self._pool.submit(self._work, number) for number in range(clients)
        ]

    @property
    def count(self) -> int:
        """Number of completed operations."""
        return len(self._done)

    def send_batch(self, lines: tuple[RequestSpec, ...]) -> None:
        """Run one batch to its end, on the thread of the caller."""
        rng = random.Random(f"batch {self._seed}")
        client = Client(self._base_url, self.streams, rng, self._hook)
        name = f"chaos/{self._seed}-batch-{len(self._done)}"
        self._done.append(client.operate(name, Kind.BATCH, lines[0], keyed=False, lines=lines))
        client.close()

    def finish(self) -> tuple[Operation, ...]:
        """Start no new operation, wait for the running ones and return all of them."""
        self._stopped.set()
        for future in self._futures:
            future.result()
        self._pool.shutdown()
        return tuple(self._done)

    def _work(self, number: int) -> None:
        rng = random.Random(f"client {number} {self._seed}")
        client = Client(self._base_url, self.streams, rng, self._hook)
        kinds = _KINDS if self._hook is None else _MIXED
        try:
            turn = 0
            while not self._stopped.is_set():
                first = number + turn * self._clients
                turn += 1
                # Each kind once, however short the run is.
                (kind,) = [*kinds][first : first + 1] or rng.choices([*kinds], [*kinds.values()])
                keyed = rng.random() < _KEYED and kind is not Kind.BATCH
                request = rng.choice(self._calls if kind is Kind.TOOLS else self._requests)
                lines: tuple[RequestSpec, ...] = ()
                if kind is Kind.BATCH:
                    size = min(rng.randint(1, _LINES_MAX), len(self._requests))
                    lines = tuple(rng.sample(self._requests, size))
                name = f"chaos/{self._seed}-{number}-{turn}"
                self._done.append(client.operate(name, kind, request, keyed=keyed, lines=lines))
        finally:
            client.close()
