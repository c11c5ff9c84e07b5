"""The cheapest example, in every run of the tests; the other ones are nightly."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.processes.examples import run
from tests.support.processes.service import Service


def test_forks_of_a_reader_know_its_document(service: Service, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("The capital of France is Paris. " * 60)
    output = run(service, tmp_path, "ten_agents.py", "--agents", "2", "--document", str(document))
    cold, forks = (
        [int(one.replace(",", "")) for one in re.findall(r"([\d,]+) (?:tokens|computed)", line)]
        for line in output.splitlines()[1:3]
    )
    assert cold[0] == cold[1]
    # The reader computes the document once, two forks little more than their questions.
    assert forks[1] < cold[1], output
    assert len(re.findall(r"\(\d[\d,]* tokens of the prompt known\)", output)) == 2
