"""The comparison of a page with a run finds what differs, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.docs.transcripts import Step, Transcript, blocks

JOB = "job-01a202d90eb371ec988f967885ed5aa1"
OTHER = "job-01a1ff9ee9e070ffb97736c9bdf3b41f"


@pytest.mark.parametrize(
    ("shown", "actual", "equal"),
    [
        ("Paris.", "Paris.\n", True),
        ("Paris.", "Rome.", False),
        ('{"a":1,\n "b":2}', '{"a":1,"b":2}', True),
        ('{"a":1}', '{"a":2}', False),
        ("after 46 ms", "after 1,046 ms", True),
        ("after 46 ms", "after it", False),
        ("worker pid 5", "worker pid 71", True),
        (f"{JOB} completed", f"{OTHER} completed", True),
        (f"{JOB} completed", f"{OTHER} failed", False),
        ("first … last", "first and then the last", True),
        ("first", "first and more", False),
    ],
)
def test_output_is_compared_by_its_form(shown: str, actual: str, *, equal: bool) -> None:
    assert Transcript().matches(shown, actual) == equal


def test_ids_of_an_output_replace_those_of_later_commands() -> None:
    transcript = Transcript()
    assert transcript.matches(f"{JOB}\npid 7", f"{OTHER}\npid 99")
    step = Step(command=f"semantic jobs show {JOB}; kill 7", output="")
    assert transcript.command(step) == f"semantic jobs show {OTHER}; kill 99"


def test_blocks_have_commands_outputs_and_reasons() -> None:
    page = (
        "```console\n$ cat > a <<'END'\nx\nEND\n$ ls \\\n  -l\na\nb\n```\n\n"
        "<!-- not run: needs a Mac -->\n```console\n$ brew install x\n```\n"
        "```python\nprint(1)\n```\n"
    )
    ran, left_out = blocks(page)
    assert ran.reason is None
    assert ran.steps == (
        Step(command="cat > a <<'END'\nx\nEND", output=""),
        Step(command="ls \\\n  -l", output="a\nb"),
    )
    assert left_out.reason == "needs a Mac"


def test_commands_in_a_block_of_another_language_are_refused() -> None:
    with pytest.raises(AssertionError):
        list(blocks("```bash\nrm -r x\n```\n"))
