"""EXP-004: is an answer out of the disk, and after a restart, the cold answer?

``python -m bench.experiments.exp004``; conversations that are the same in each run.
"""

from __future__ import annotations

from contextlib import closing

from bench.experiments.equality import print_comparison
from tests.support.models.equality import InOtherProcess, after_restart, from_disk

#: Of each network.
CONVERSATIONS = 4


def main() -> None:
    """Print the table."""
    with closing(InOtherProcess()) as other:
        print_comparison((from_disk, other, after_restart), CONVERSATIONS)


if __name__ == "__main__":
    main()
