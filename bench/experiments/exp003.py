"""EXP-003: is an answer from cached memory the cold answer?

``python -m bench.experiments.exp003``; the same conversations in each run.
"""

from __future__ import annotations

from bench.experiments.equality import print_comparison
from tests.support.models.equality import from_little_memory, from_memory

#: Of each network.
CONVERSATIONS = 4


def main() -> None:
    """Print the table."""
    print_comparison((from_memory, from_little_memory), CONVERSATIONS)


if __name__ == "__main__":
    main()
