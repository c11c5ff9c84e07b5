"""EXP-003: is an answer from cached memory the cold answer?

``python -m bench.experiments.exp003``; the same conversations in each run without ``--seed``.
"""

from __future__ import annotations

from bench.experiments.equality import print_comparison
from tests.support.models.equality import among_strangers, from_little_memory, from_memory


def main() -> None:
    """Print the table."""
    print_comparison((from_memory, from_little_memory, among_strangers))


if __name__ == "__main__":
    main()
