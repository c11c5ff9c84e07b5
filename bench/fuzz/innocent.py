"""A client that streams answers while others send rubbish, and measures how long it waits."""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Event, Thread
from typing import Final

from bench.client import chat_body, stream_together

#: Time between two wake-ups of the thread that measures how late this process is, in seconds.
WAKE_S: Final = 0.05
_BODY: Final = chat_body(
    "claude-local", [{"role": "user", "content": "Count to a hundred."}], max_tokens=128
)


class InnocentStream:
    """Streams one answer after the other until it is closed.

    Args:
        base_url: Address of the service.

    Attributes:
        longest_gap_s: Longest time between two pieces of one stream, or before its first, in
            seconds, without what this process itself was late during the stream.
        late_s: Longest time by which this process was late, in seconds.
        streams: Number of answers.
        faults: Streams that ended with an error.
    """

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._closed = Event()
        self.longest_gap_s = 0.0
        self.late_s = 0.0
        self._lateness = Lateness()
        self.streams = 0
        self.faults: list[str] = []
        self._thread = Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End after the current stream."""
        self._closed.set()
        self._thread.join()
        self._lateness.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._lateness.take()
            try:
                (trace,) = stream_together(self._base_url, [_BODY])
            except (OSError, RuntimeError) as error:
                self.faults.append(f"innocent stream: {error!r}")
                self._closed.wait(1)
                continue
            late_s = self._lateness.take()
            self.late_s = max(late_s, self.late_s)
            times = [trace.sent, *trace.tokens, trace.done]
            gap_s = max(later - earlier for earlier, later in pairwise(times)) - late_s
            self.longest_gap_s = max(gap_s, self.longest_gap_s)
            self.streams += 1


class Lateness:
    """By how much a thread of this process wakes up late: what its own machine takes from it."""

    def __init__(self) -> None:
        self._closed = Event()
        self._late_s = 0.0
        self._due_s = time.monotonic() + WAKE_S
        self._thread = Thread(target=self._run)
        self._thread.start()

    def take(self) -> float:
        """Return the longest delay since the last call, in seconds."""
        # The thread may not have woken up yet.
        late_s = max(self._late_s, time.monotonic() - self._due_s)
        self._late_s = 0.0
        return late_s

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(max(0.0, self._due_s - time.monotonic())):
            now_s = time.monotonic()
            self._late_s = max(self._late_s, now_s - self._due_s)
            self._due_s = now_s + WAKE_S
