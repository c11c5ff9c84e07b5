"""Traces become sessions that continue, and figures count what each turn could reuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.comparison.server import ADAPTERS, MLX_LM, SEMANTIC, Place
from bench.comparison.strangers import Sizes, Turn, figures_of, read_sessions, session_of

SIZES = Sizes(scale=16, sessions=1, turns=4, prompt_tokens=100)
TRACE = {
    "id": "trace_0001",
    "block_size": 64,
    "tool_tokens": 128,
    "system_tokens": 64,
    "requests": [
        {"out": 640, "hash_ids": [1, 2, 3, 4, 5]},
        {"out": 16, "hash_ids": [1, 2, 3, 4, 6, *range(10, 30)]},
        {"out": 16, "hash_ids": [1, 2, 7, *range(40, 90)]},
    ],
}


def turn(session: str, prompt: int, cached: int, *, has_failed: bool = False) -> Turn:
    return Turn(
        session=session,
        prompt_tokens=prompt,
        cached_tokens=cached,
        first_s=cached / 1000,
        has_failed=has_failed,
    )


def test_a_session_ends_where_a_prompt_does_not_continue_the_last_one() -> None:
    session = session_of(TRACE, SIZES, "salt")

    turns = session["turns"]
    assert [one["input_tokens"] for one in turns] == [20, 100]
    assert len(session["system_prompt"].split()) == 3 * 4
    # Two blocks are left of the first prompt; ten of the next one are the answer before it.
    assert [len(one["input_delta"][0]["content"].split()) for one in turns] == [2 * 4, 10 * 4]
    assert [one["output_tokens"] for one in turns] == [40, 8]


def test_equal_salts_give_equal_texts_and_others_share_none() -> None:
    again, other = session_of(TRACE, SIZES, "salt"), session_of(TRACE, SIZES, "other")

    assert session_of(TRACE, SIZES, "salt") == again
    assert other["system_prompt"] != again["system_prompt"]


def test_traces_of_another_size_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "trace_0001.json").write_text(json.dumps(TRACE))

    assert len(read_sessions(tmp_path, SIZES, "salt")) == 1
    small = Sizes(scale=16, sessions=1, turns=4, prompt_tokens=99)
    with pytest.raises(LookupError, match="0 of 1 traces"):
        read_sessions(tmp_path, small, "salt")


def test_a_turn_can_reuse_the_prompt_before_it_and_a_failed_one_counts_as_failed() -> None:
    turns = [
        turn("a", 100, 7),
        turn("b", 50, 0),
        turn("a", 0, 0, has_failed=True),
        turn("a", 200, 120),
        turn("b", 90, 25),
    ]

    figures = figures_of("x", turns, 3.0)

    assert figures["x_reused"] == pytest.approx(100 * (100 + 25) / (100 + 50))
    assert figures["x_failed"] == "1 of 5"
    assert figures["x_total"] == 3.0


def test_a_budget_is_an_option_or_a_variable(tmp_path: Path) -> None:
    place = Place(python=Path("python"), model=tmp_path, data_dir=tmp_path, port=1, kv_budget_mb=2)

    assert MLX_LM.command(place)[-2:] == ["--prompt-cache-bytes", str(2 * 2**20)]
    assert SEMANTIC.environment(place)["SEMANTIC_ENGINE__KV_BUDGET_MB"] == "2"
    assert all(adapter.budget for adapter in ADAPTERS.values())
