"""EXP-004: is an answer from the disk, also after a restart, the cold answer?

``python -m bench.experiments.exp004``; the same conversations in each run without ``--seed``.
"""

from __future__ import annotations

from contextlib import closing

from bench.experiments.equality import print_comparison
from tests.support.models.equality import (
    InOtherProcess,
    after_restart,
    after_restart_among_strangers,
    from_disk,
)


def main() -> None:
    """Print the table."""
    with closing(InOtherProcess()) as other:
        print_comparison((from_disk, other, after_restart, after_restart_among_strangers))


if __name__ == "__main__":
    main()
