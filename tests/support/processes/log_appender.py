"""A second process that appends to a log, and prints a line for each append.

python -m tests.support.processes.log_appender URL STREAM_PREFIX COUNT
"""

from __future__ import annotations

import sys

from domain.values import StreamName, digest_of
from ops.clock import SystemClock
from ops.log.migrate import upgrade
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import draft, started, submitted


def main(url: str, prefix: str, count: int) -> None:
    upgrade(url)
    with open_log(url, clock=SystemClock()) as log:
        for number in range(count):
            payload = f"{prefix} {number}".encode()
            log.append(
                StreamName(f"job-{prefix}-{number}"),
                [draft(submitted()), draft(started())],
                expected_version=0,
                payloads={digest_of(payload): payload},
            )
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
