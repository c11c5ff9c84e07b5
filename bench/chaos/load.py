"""The mixed work: what is asked, in which way, and the threads that ask it."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from bench.chaos.client import Client
from bench.chaos.history import Asked, Kind, Operation
from bench.chaos.wire import Lines

#: Long enough for a block of context on disk, which the next attempt starts from.
_PREAMBLE: Final = "The quick brown fox jumps over the lazy dog. " * 28
_QUESTIONS: Final = (
    "Tell me a long story about a fox.",
    "What is the capital of France?",
    "What can you do?",
    "Tell me a long story about a lighthouse.",
    "Count from one to twenty.",
)
_KINDS: Final = {Kind.MESSAGES: 4, Kind.STREAMED: 4, Kind.POLLED: 2, Kind.CANCELLED: 1}
#: Of all operations; the others have to rely on what the service makes of a repeat.
_KEYED: Final = 0.8
PROBE: Final = Asked(prompt="Say hello.", max_tokens=1, temperature=0, seed=0)


def repertoire(seed: int, size: int) -> tuple[Asked, ...]:
    """Return different requests, every other one greedy; some have a long prompt."""
    chance = random.Random(f"repertoire {seed}")
    return tuple(
        Asked(
            prompt=f"{_PREAMBLE if number % 4 == 3 else ''}({number}) {chance.choice(_QUESTIONS)}",
            max_tokens=chance.randint(24, 160),
            temperature=float(number % 2),
            seed=chance.randrange(2**31),
        )
        for number in range(size)
    )


class Load:
    """Clients that work until they are told to stop.

    Args:
        base_url: The service.
        seed: Decides who asks what and how.
        asked: What may be asked.
        clients: How many ask at once.
    """

    def __init__(self, base_url: str, *, seed: int, asked: Sequence[Asked], clients: int) -> None:
        self.lines = Lines()
        self._base_url = base_url
        self._seed = seed
        self._asked = asked
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(clients, thread_name_prefix="chaos")
        self._done: list[Operation] = []
        self._futures: list[Future[None]] = [
            self._pool.submit(self._work, number) for number in range(clients)
        ]

    @property
    def count(self) -> int:
        """Operations that have come to an end."""
        return len(self._done)

    def finish(self) -> tuple[Operation, ...]:
        """Begin nothing new, wait for what goes on and return everything that was recorded."""
        self._stopped.set()
        for future in self._futures:
            future.result()
        self._pool.shutdown()
        return tuple(self._done)

    def _work(self, number: int) -> None:
        chance = random.Random(f"client {number} {self._seed}")
        client = Client(self._base_url, self.lines, chance)
        try:
            turn = 0
            while not self._stopped.is_set():
                turn += 1
                (kind,) = chance.choices([*_KINDS], [*_KINDS.values()])
                keyed = chance.random() < _KEYED
                asked = chance.choice(self._asked)
                name = f"chaos/{self._seed}-{number}-{turn}"
                self._done.append(client.operate(name, kind, asked, keyed=keyed))
        finally:
            client.close()
