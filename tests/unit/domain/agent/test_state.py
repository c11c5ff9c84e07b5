"""The profile of an agent and the numbers of its turns."""

from __future__ import annotations

import pytest

from domain.agent.state import Agent, AgentOptions, Profile, next_turn, require_turn
from domain.errors import AgentNotFound, AgentTurnConflict, InvalidRequest
from domain.values import AgentId, JobId, JobStatus

A = AgentId("a")
ONE, TWO, THREE, FOUR = (JobId(f"job-{number}") for number in range(1, 5))
#: The third turn is the first one of its own.
FORKED = Agent(id=A, life=1, inherited=2, base=FOUR, turns=(ONE, TWO, THREE))
FRESH = Agent(id=A, life=1)
OPEN = [JobStatus.QUEUED, JobStatus.RUNNING]
UNANSWERED = [JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED]

FULL = Profile(
    system="Sei höflich.",
    tools=({"type": "function", "function": {"name": "look"}},),
    options=AgentOptions(model="m", max_tokens=5, temperature=0.5, stop=("END", "\n"), top_k=3),
)
FULL_BYTES = (
    '{"options":{"max_tokens":5,"min_p":null,"model":"m","stop":["END","\\n"],"temperature":0.5,'
    '"thinking":null,"top_k":3,"top_p":null},"system":"Sei höflich.",'
    '"tools":[{"function":{"name":"look"},"type":"function"}]}'
)
EMPTY_BYTES = (
    '{"options":{"max_tokens":null,"min_p":null,"model":null,"stop":null,"temperature":null,'
    '"thinking":null,"top_k":null,"top_p":null},"system":"","tools":[]}'
)


@pytest.mark.parametrize(("profile", "payload"), [(FULL, FULL_BYTES), (Profile(), EMPTY_BYTES)])
def test_the_bytes_of_a_profile_never_change(profile: Profile, payload: str) -> None:
    assert profile.to_bytes().decode() == payload
    assert Profile.from_bytes(payload.encode()) == profile


def test_options_of_a_turn_go_over_those_of_the_agent() -> None:
    turn = AgentOptions(temperature=0.0, thinking=False, stop=())
    agent = AgentOptions(model="m", temperature=0.7, top_p=0.9, stop=("END",))
    assert turn.over(agent) == AgentOptions(
        model="m", temperature=0.0, top_p=0.9, thinking=False, stop=()
    )
    assert AgentOptions().over(agent) == agent


def test_a_profile_with_penalties_is_read_back() -> None:
    options = AgentOptions(repetition_penalty=1.1, logit_bias=((5, -100.0), (7, 1.0)))
    profile = Profile(options=options)
    assert Profile.from_bytes(profile.to_bytes()) == profile


def test_options_are_listed_by_name_with_those_that_are_not_set() -> None:
    assert AgentOptions(max_tokens=5, min_p=0.1).by_name() == {
        "model": None,
        "max_tokens": 5,
        "temperature": None,
        "top_p": None,
        "top_k": None,
        "min_p": 0.1,
        "presence_penalty": None,
        "frequency_penalty": None,
        "repetition_penalty": None,
        "repetition_context_size": None,
        "logit_bias": None,
        "xtc_probability": None,
        "xtc_threshold": None,
        "stop": None,
        "thinking": None,
    }


def test_turns_of_a_fork_are_numbered_after_the_inherited_ones() -> None:
    assert [FORKED.number_of(job) for job in (ONE, TWO, THREE)] == [3, 4, 5]
    assert FORKED.number_of(FOUR) is None
    assert FORKED.last == THREE
    assert FRESH.number_of(ONE) is None
    assert FRESH.last is None


def test_a_turn_follows_the_job_before_it_and_the_first_one_follows_the_base() -> None:
    assert [FORKED.job_before(turn) for turn in (3, 4, 5, 6)] == [FOUR, ONE, TWO, THREE]
    assert FRESH.job_before(1) is None


@pytest.mark.parametrize(
    ("last", "turns"),
    [(JobStatus.COMPLETED, 5), (None, 5), *((one, 4) for one in (*OPEN, *UNANSWERED))],
)
def test_a_latest_turn_without_an_answer_does_not_count(last: JobStatus | None, turns: int) -> None:
    assert FORKED.counted(last) == turns


def test_an_agent_without_turns_of_its_own_counts_the_inherited_ones() -> None:
    assert Agent(id=A, life=1, inherited=2, base=FOUR).counted(None) == 2
    assert FRESH.counted(None) == 0


@pytest.mark.parametrize("expected", [None, 5])
def test_after_an_answer_comes_the_next_turn(expected: int | None) -> None:
    assert next_turn(FORKED, JobStatus.COMPLETED, expected) == 6


@pytest.mark.parametrize("last", UNANSWERED)
@pytest.mark.parametrize("expected", [None, 4])
def test_a_turn_that_ended_without_an_answer_is_replaced(
    last: JobStatus, expected: int | None
) -> None:
    assert next_turn(FORKED, last, expected) == 5


@pytest.mark.parametrize("expected", [None, 0])
def test_the_first_turn_of_a_new_agent_is_turn_one(expected: int | None) -> None:
    assert next_turn(FRESH, None, expected) == 1


@pytest.mark.parametrize("last", OPEN)
@pytest.mark.parametrize("expected", [None, 4, 5])
def test_no_turn_is_added_while_one_is_open(last: JobStatus, expected: int | None) -> None:
    with pytest.raises(AgentTurnConflict) as refused:
        next_turn(FORKED, last, expected)
    assert (refused.value.turn, refused.value.job) == (4, THREE)


@pytest.mark.parametrize("expected", [0, 4, 6])
def test_another_number_of_turns_than_expected_is_a_conflict(expected: int) -> None:
    with pytest.raises(AgentTurnConflict) as refused:
        next_turn(FORKED, JobStatus.COMPLETED, expected)
    assert (refused.value.turn, refused.value.job) == (5, None)


def test_an_agent_that_is_not_there_has_no_turns() -> None:
    with pytest.raises(AgentNotFound, match="agent a does not exist"):
        next_turn(Agent(id=A), None, None)
    with pytest.raises(AgentNotFound, match="agent a does not exist"):
        require_turn(Agent(id=A), None, 0)


@pytest.mark.parametrize(("last", "turns"), [(JobStatus.COMPLETED, 5), (JobStatus.RUNNING, 4)])
def test_only_turns_with_an_answer_can_be_named(last: JobStatus, turns: int) -> None:
    for turn in range(turns + 1):
        require_turn(FORKED, last, turn)
    with pytest.raises(InvalidRequest, match=f"agent a has {turns} turns") as refused:
        require_turn(FORKED, last, turns + 1)
    assert refused.value.field == "from_turn"
