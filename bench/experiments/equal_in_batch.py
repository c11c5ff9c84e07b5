"""Is an answer in a batch with other sequences the cold answer?

``python -m bench.experiments.equal_in_batch``; the same conversations in each run.
"""

from __future__ import annotations

from bench.experiments.equality import print_comparison
from tests.support.models.equality import after_restart_among_strangers, among_strangers, from_disk

#: Of each network.
CONVERSATIONS = 4


def main() -> None:
    """Print the table."""
    # The first way fills the disk that the last one reads.
    print_comparison((from_disk, among_strangers, after_restart_among_strangers), CONVERSATIONS)


if __name__ == "__main__":
    main()
