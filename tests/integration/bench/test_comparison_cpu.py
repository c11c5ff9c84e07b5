from __future__ import annotations

import os
import subprocess
import sys

from bench.comparison import cpu

BUSY_S = 0.2
#: The kernel rounds each of its counts down to a hundredth of a second.
ROUNDED_S = 0.05
#: Uses the CPU in a child of a child, which ends before the grandparent tells so.
_PROGRAM = f"""
import subprocess, sys
burn = "import time\\nwhile time.process_time() < {BUSY_S + ROUNDED_S}: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
print("burnt", flush=True)
sys.stdin.read()
"""


def test_cpu_of_a_process_counts_children_that_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"

        assert cpu.cpu_seconds(process.pid) >= BUSY_S


def test_cpu_of_a_process_that_is_gone_is_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert cpu.family(process.pid) == []
    assert cpu.cpu_seconds(process.pid) == 0


def test_family_begins_with_the_process_itself() -> None:
    assert cpu.family(os.getpid())[0].pid == os.getpid()
