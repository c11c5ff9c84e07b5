"""The comparison judges each cell by its rounds, and its requests are the same for all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.client import StreamTrace, figures_of
from bench.together.__main__ import fill
from bench.together.cells import RIVAL, US, Cell, Key, section_of, table, verdicts
from bench.together.contenders import RAW
from bench.together.workloads import KINDS, copied_share, make_bodies, prompt_of


def _trace(first: float, step: float, pieces: int, text: str = "a") -> StreamTrace:
    times = [first + step * place for place in range(pieces)]
    piece = json.dumps({"choices": [{"delta": {"content": text}}]})
    return StreamTrace(
        sent=0.0,
        tokens=times,
        done=times[-1],
        completion_tokens=2 * pieces,
        pieces=[piece] * pieces,
    )


class _Paced:
    """Answers each request with ten pieces of two tokens, at a pace."""

    keeps_prompts = True

    def __init__(self, name: str, step: float, text: str = "a") -> None:
        self.name, self._step, self._text = name, step, text

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        return [_trace(1.0, self._step, 10, self._text) for _ in bodies], 0.5


def _cell(
    ours: float, theirs: float, *, kind: str = "prose", streams: int = 2, rounds: int = 3
) -> Cell:
    cell = Cell(Key(kind=kind, tokens=48, is_known=False, streams=streams))
    contenders = [_Paced(US, ours), _Paced(RIVAL, theirs), _Paced(RAW, theirs)]
    for number in range(rounds):
        bodies = make_bodies(kind, model="m", streams=streams, tokens=48, name=str(number))
        fill(cell, contenders, bodies)
    return cell


def test_the_window_begins_with_the_last_first_text_and_ends_with_the_first_end() -> None:
    found = figures_of([_trace(1.0, 1.0, 5), _trace(2.0, 1.0, 9)], cpu_s=1.4)
    assert (found.first_p50_s, found.first_last_s, found.total_s) == (1.5, 2.0, 10.0)
    assert found.window_s == 3.0
    # Three pieces of two tokens from each stream.
    assert found.decode_per_s == pytest.approx(12 / 3)
    assert found.cpu_ms_a_token == pytest.approx(1400 / 28)


def test_a_stream_that_ends_before_another_begins_leaves_no_window() -> None:
    found = figures_of([_trace(1.0, 0.1, 5), _trace(9.0, 0.1, 5)], cpu_s=0.0)
    assert (found.window_s, found.decode_per_s) == (0.0, 0.0)


def test_a_cell_is_judged_by_the_median_of_its_rounds() -> None:
    slower, faster = _cell(0.4, 0.2), _cell(0.2, 0.4)
    assert slower.faster()[0] < slower.target < faster.faster()[0]
    assert "**missed**" in list(table([slower]))[-1]
    assert "**missed**" not in list(table([faster]))[-1]
    (total, decode) = verdicts([slower, faster])
    assert "**missed**" in total
    assert "1 of 2 cells" in total
    assert "**missed**" in decode


def test_edits_have_a_higher_target_where_the_issue_has_one() -> None:
    assert _cell(0.2, 0.2, kind="edits", streams=4).target == 1.3
    assert _cell(0.2, 0.2, kind="edits", streams=2).target == 0.97


def test_agents_are_judged_beside_one() -> None:
    cells = [_cell(0.2, 0.2, streams=1), _cell(0.2, 0.2, streams=3)]
    (line,) = [one for one in verdicts(cells) if one.startswith("- 3 agents")]
    assert "3.00" in line
    assert "reached" in line


def test_known_requests_have_no_share_of_the_bare_generator() -> None:
    cell = Cell(Key(kind="code", tokens=48, is_known=True, streams=1))
    bodies = make_bodies("code", model="m", streams=1, tokens=48, name="0")
    fill(cell, [_Paced(US, 0.2), _Paced(RIVAL, 0.2, text="b")], bodies)
    assert (cell.decode_share(), cell.equal, cell.asked) == ([], 0, 1)


def test_the_section_of_the_report_is_made_of_what_a_run_wrote() -> None:
    cells = [_cell(0.4, 0.2), _cell(0.2, 0.4, kind="edits", streams=4)]
    conditions = {
        "system": "Linux x86_64",
        "cores": 2,
        "memory_gb": 8,
        "python": "3.11.7",
        "commit": "0123abcd",
        "busy_percent": 0.1,
        "quiet": True,
        "at": "2026-11-28 00:00 UTC",
        "versions": {"mlx": "1"},
        "model": "m",
        "blas": {US: {"library": "OpenBLAS", "threads": 1, "gflops": 90.0}},
        "rounds": 3,
        "took_s": 10.0,
    }
    section = section_of(cells, conditions)
    assert json.loads(json.dumps(section.figures))["cells"][0]["asked"] == cells[0].asked
    assert section.headline is not None
    assert "4 streams" in section.headline[0]
    assert any("90 GFLOPS" in line for line in section.table)


@given(kind=st.sampled_from(KINDS), streams=st.integers(2, 16), number=st.integers(0, 99))
def test_requests_differ_by_stream_and_round_and_are_the_same_again(
    kind: str, streams: int, number: int
) -> None:
    one, again, other = (
        make_bodies(kind, model="m", streams=streams, tokens=48, name=name)
        for name in (f"{number}", f"{number}", f"{number} and another")
    )
    assert one == again
    texts = {prompt_of(body) for body in (*one, *other)}
    assert len(texts) == 2 * streams


def test_the_copied_share_counts_what_stands_in_the_prompt() -> None:
    prompt = "the quick brown fox jumps over the lazy dog and runs away"
    assert copied_share(prompt, prompt[4:50]) == 1.0
    assert copied_share(prompt, "a story that has nothing of the other text in it") == 0.0
    assert copied_share(prompt, "short") == 0.0
