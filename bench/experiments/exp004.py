"""EXP-004: is an answer from the disk, also after a restart, the cold answer?

``python -m bench.experiments.exp004``; the same conversations in each run.
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
