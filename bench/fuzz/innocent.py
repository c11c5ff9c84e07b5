"""A client that streams answers while others send rubbish, and measures how long it waits."""

from __future__ import annotations

import http.client
import json
import time
from threading import Event, Thread
from typing import Final

#: Seconds after which a silent stream counts as a failure.
PATIENCE_S: Final = 60.0
_BODY: Final = json.dumps(
    {
        "model": "claude-local",
        "max_tokens": 128,
        "stream": True,
        "messages": [{"role": "user", "content": "Count to a hundred."}],
    }
)


class InnocentStream:
    """Streams one answer after the other until it is closed.

    Args:
        port: Of the service.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._closed = Event()
        #: Longest time between two pieces of one stream, or before its first, in seconds.
        self.longest_gap_s = 0.0
        self.streams = 0
        self.faults: list[str] = []
        self._thread = Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End after the current stream."""
        self._closed.set()
        self._thread.join()

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
            while reply.read1():
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
                last_s = now_s
            self.streams += 1
        finally:
            connection.close()
