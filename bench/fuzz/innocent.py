"""A client that streams answers while others send rubbish, and measures how long it waits."""

from __future__ import annotations

import http.client
import json
import time
from threading import Event, Thread
from typing import Final

#: Seconds after which a silent stream counts as a failure.
PATIENCE_S: Final = 60.0
#: Time between two wake-ups of the thread that measures how late this process is, in seconds.
WAKE_S: Final = 0.05
_BODY: Final = json.dumps(
    {
        "model": "claude-local",
        "max_tokens": 128,
        "stream": True,
        "messages": [{"role": "user", "content": "Count to a hundred."}],
    }
)


class InnocentStream:
    """Streams one answer after the other until it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._closed = Event()
        #: Longest time between two pieces of one stream, or before its first, in seconds, without
        #: what this process itself was late.
        self.longest_gap_s = 0.0
        #: Where that was, and the longest time by which this process was late, in seconds.
        self.longest_gap_at = ""
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
            try:
                self._stream()
            except (OSError, http.client.HTTPException) as error:
                self.faults.append(f"innocent stream: {error!r}")
                self._closed.wait(1)

    def _stream(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            last_s = time.monotonic()
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/messages", _BODY, headers)
            reply = connection.getresponse()
            if reply.status != 200:
                self.faults.append(f"innocent stream: status {reply.status}")
                self._closed.wait(1)
                return
            last_s = self._measure(last_s, f"before the head of {reply.headers['x-semantic-job']}")
            while reply.read1():
                last_s = self._measure(
                    last_s, f"in the stream of {reply.headers['x-semantic-job']}"
                )
            self.streams += 1
        finally:
            connection.close()

    def _measure(self, last_s: float, place: str) -> float:
        """Note the time since ``last_s`` if it is the longest; return the present time."""
        now_s, late_s = time.monotonic(), self._lateness.take()
        self.late_s = max(late_s, self.late_s)
        gap_s = now_s - last_s - late_s
        if gap_s > self.longest_gap_s:
            self.longest_gap_s, self.longest_gap_at = gap_s, place
        return now_s


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
