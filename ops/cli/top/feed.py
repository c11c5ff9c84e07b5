"""The overviews of a running service, one after another, also over restarts of the api."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ops.cli.client import read_events
from ops.clients.http_client import HttpClient, Refused, Unreachable

STREAM: Final = "/admin/overview/stream"
OVERVIEW: Final = "/admin/overview"
#: Pulses of a worker until its rows are there, and seconds between two of them.
SNAPSHOT_TRIES: Final = 3
REPORT_S: Final = 1.0
#: Longest silence of the stream in seconds; the service pings more often.
SILENCE_S: Final = 30.0
#: First and longest pause before the next connection, in seconds.
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Lost:
    """No connection; ``why`` in words, and the seconds until the next attempt."""

    why: str
    again_s: float


def overviews(
    connect: Callable[[], HttpClient], wait: Callable[[float], bool]
) -> Iterator[dict[str, Any] | Lost]:
    """Yield overviews as they come, and ``Lost`` while the service does not answer.

    Args:
        connect: Returns a client; the address may change when the service starts again.
        wait: Waits a number of seconds; returns whether to stop.
    """
    pause_s = PAUSE_S
    while True:
        try:
            for overview in _stream(connect()):
                pause_s = PAUSE_S
                yield overview
            why = "the service ended the stream"
        except Refused as refused:
            why = str(refused)
        except Unreachable:
            why = "no service answers"
        yield Lost(why, pause_s)
        if wait(pause_s):
            return
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _stream(client: HttpClient) -> Iterator[dict[str, Any]]:
    with client.lines(STREAM, headers={"accept": "text/event-stream"}, timeout_s=SILENCE_S) as got:
        for _, data in read_events(got):
            if data.get("object") == "overview":
                yield data


def snapshot(client: HttpClient, wait: Callable[[float], object]) -> dict[str, Any]:
    """Return one overview with the rows of the workers, which report them when they are watched.

    Args:
        client: Of the service.
        wait: Waits a number of seconds.

    Raises:
        Refused: The service answered with an error.
        Unreachable: The service does not answer.
    """
    found: dict[str, Any] = client.ask("GET", OVERVIEW)
    for _ in range(SNAPSHOT_TRIES):
        if all(row["worker"] is not None for row in found["running"]):
            break
        wait(REPORT_S)
        found = client.ask("GET", OVERVIEW)
    return found
