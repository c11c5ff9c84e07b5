"""The receiver of webhooks: it refuses some messages, answers some too late, and records all."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.chaos.history import WebhookMessage
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
