from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from domain.log.record import RecordedEvent
from domain.log.text_owners import OwnedJob, RetentionCut, TextOwners, cut_to_size
from domain.values import EventId, StreamName

NOTHING = RetentionCut()
ALL_OLD = RetentionCut(ended_before="9", expired_by="9")


def _job(name: str, position: int = 1, *, ended_at: str | None = "5", **more: Any) -> OwnedJob:
    return OwnedJob(id=name, position=position, ended_at=ended_at, **more)


def _event(position: int, stream: str, type_name: str, **data: Any) -> RecordedEvent:
    return RecordedEvent(
        position=position,
        stream=StreamName(stream),
        version=1,
        type=type_name,
        schema_version=1,
        data=data,
        event_id=EventId(f"event-{position}"),
        correlation_id="",
        causation_id=None,
        recorded_at="5",
        prev_hash="",
        hash="",
    )


def _owners(
    jobs: list[OwnedJob], events: list[RecordedEvent], parts: Mapping[str, set[str]] | None = None
) -> TextOwners:
    texts = {job.id: {f"{job.id} text"} for job in jobs}
    return TextOwners(jobs, texts, events, parts=parts or {})


def test_by_default_nothing_is_released() -> None:
    owners = _owners([_job("job-1"), _job("job-2", ended_at=None)], [])
    assert owners.kept(NOTHING) == {"job-1 text", "job-2 text"}


def test_an_open_job_keeps_its_text_at_any_age_and_an_ended_one_does_not() -> None:
    owners = _owners([_job("job-1"), _job("job-2", ended_at=None), _job("job-3", ended_at="9")], [])
    assert owners.kept(ALL_OLD) == {"job-2 text", "job-3 text"}


def test_the_turns_of_an_agent_that_is_there_keep_their_texts_at_any_age() -> None:
    turn = _event(2, "agent-a", "AgentTurnAdded", turn=1, job="job-1")
    events = [_event(1, "agent-a", "AgentRegistered", profile="p"), turn]
    jobs = [_job("job-1", 2, agent="a"), _job("job-2", 3, agent="a")]
    assert _owners(jobs, events).kept(ALL_OLD) == {"p", "job-1 text"}


def test_a_turn_that_was_replaced_is_an_ordinary_job() -> None:
    turns = [_event(at, "agent-a", "AgentTurnAdded", turn=1, job=f"job-{at}") for at in (2, 3)]
    events = [_event(1, "agent-a", "AgentRegistered", profile="p"), *turns]
    jobs = [_job("job-2", 2, agent="a"), _job("job-3", 3, agent="a")]
    assert _owners(jobs, events).kept(ALL_OLD) == {"p", "job-3 text"}


@pytest.mark.parametrize("type_name", ["AgentDeleted", "AgentForgotten"])
def test_a_deleted_agent_releases_the_jobs_before_and_no_later_ones(type_name: str) -> None:
    events = [
        _event(1, "agent-a", "AgentRegistered", profile="p"),
        _event(3, "agent-a", type_name),
        _event(4, "agent-a", "AgentRegistered", profile="q"),
    ]
    jobs = [_job("job-1", 2, agent="a"), _job("job-2", 5, agent="a"), _job("job-3", 2)]
    owners = _owners(jobs, events)
    assert owners.kept(NOTHING) == {"q", "job-2 text", "job-3 text"}
    assert owners.waiting() == 0


def test_an_open_job_of_a_deleted_agent_is_waited_for() -> None:
    jobs = [_job("job-1", 2, ended_at=None, agent="a")]
    owners = _owners(jobs, [_event(3, "agent-a", "AgentDeleted")])
    assert owners.kept(NOTHING) == {"job-1 text"}
    assert owners.waiting() == 1


def test_a_fork_keeps_what_it_goes_on_from() -> None:
    fork = _event(
        2, "agent-b", "AgentForked", profile="p", request="r", output="o", turn=1, job="job-1"
    )
    owners = _owners([_job("job-1", agent="a")], [fork, _event(3, "agent-a", "AgentDeleted")])
    assert owners.kept(ALL_OLD) == {"p", "r", "o"}


def test_a_hidden_answer_releases_its_texts() -> None:
    assert _owners([_job("job-1")], [_event(2, "job-1", "JobHidden")]).kept(NOTHING) == set()


def test_a_file_has_its_chunks_until_it_is_deleted_or_expired() -> None:
    created = [
        _event(1, "file-1", "FileCreated", content="m1"),
        _event(2, "file-2", "FileCreated", content="m2", expires_at="7"),
        _event(3, "file-3", "FileCreated", content="m3"),
        _event(4, "file-3", "FileDeleted"),
    ]
    owners = _owners([], created, {"m1": {"c1"}, "m2": {"c2"}, "m3": {"c3"}})
    assert owners.kept(NOTHING) == {"m1", "c1", "m2", "c2"}
    assert owners.kept(ALL_OLD) == {"m1", "c1"}


def test_a_batch_needs_a_deleted_file_until_its_results_are_deleted() -> None:
    events = [
        _event(1, "file-in", "FileCreated", content="m"),
        _event(2, "batch-1", "BatchSubmitted", content="m", input_file="file-in"),
        _event(3, "file-in", "FileDeleted"),
    ]
    jobs = [_job("job-1", 3, batch="batch-1")]
    still_open = _owners(jobs, events, {"m": {"c"}})
    assert still_open.kept(ALL_OLD) == {"m", "c", "job-1 text"}
    events += [
        _event(4, "file-out", "FileCreated", batch="batch-1", part="output"),
        _event(5, "batch-1", "BatchEnded"),
    ]
    assert _owners(jobs, events, {"m": {"c"}}).kept(ALL_OLD) == {"m", "c", "job-1 text"}
    events.append(_event(6, "file-out", "FileDeleted"))
    assert _owners(jobs, events, {"m": {"c"}}).kept(NOTHING) == set()


def test_a_deleted_batch_releases_its_lines() -> None:
    events = [
        _event(1, "batch-1", "BatchSubmitted", content="m"),
        _event(2, "batch-1", "BatchEnded"),
    ]
    jobs = [_job("job-1", 2, batch="batch-1")]
    assert _owners(jobs, events).kept(NOTHING) == {"m", "job-1 text"}
    events.append(_event(3, "batch-1", "BatchDeleted"))
    assert _owners(jobs, events).kept(NOTHING) == set()


def test_a_job_whose_archive_was_erased_needs_nothing() -> None:
    assert _owners([_job("job-1", is_erased=True)], []).kept(NOTHING) == set()


@pytest.mark.parametrize(
    ("bytes_max", "left"), [(40, "1234"), (39, "234"), (20, "34"), (1, "4"), (0, "4")]
)
def test_the_jobs_that_ended_first_go_until_the_rest_fits(bytes_max: int, left: str) -> None:
    jobs = [_job(f"job-{n}", n, ended_at=str(n)) for n in (1, 2, 3)] + [
        _job("job-4", 4, ended_at=None)
    ]
    owners = _owners(jobs, [])
    sizes = {f"job-{n} text": 10 for n in range(1, 5)}
    cut = cut_to_size(owners, sizes, bytes_max, NOTHING, now="8")
    assert owners.kept(cut) == {f"job-{n} text" for n in left}


@pytest.mark.parametrize(("cut", "is_kept"), [("4", True), ("5", True), ("6", False)])
def test_what_ended_at_the_cut_itself_stays(cut: str, is_kept: bool) -> None:  # noqa: FBT001 - a parameter
    batch = [
        _event(1, "batch-1", "BatchSubmitted", content="m"),
        _event(2, "batch-1", "BatchEnded"),
    ]
    owners = _owners([_job("job-1"), _job("job-2", batch="batch-1")], batch)
    kept = owners.kept(RetentionCut(ended_before=cut))
    assert kept == ({"job-1 text", "job-2 text", "m"} if is_kept else set())
    assert {*owners.released(RetentionCut(ended_before=cut))} == (
        set() if is_kept else {"job-1", "job-2"}
    )


def test_a_file_goes_at_the_instant_at_which_it_expires() -> None:
    created = _event(1, "file-1", "FileCreated", content="m", expires_at="7")
    owners = _owners([], [created])
    assert owners.kept(RetentionCut(expired_by="6")) == {"m"}
    assert owners.kept(RetentionCut(expired_by="7")) == set()


def test_the_faults_of_a_failed_batch_stay_until_it_is_deleted_or_old() -> None:
    events = [
        _event(1, "batch-1", "BatchSubmitted", content="m"),
        _event(2, "batch-1", "BatchFailed", errors="faults"),
    ]
    owners = _owners([], events)
    assert owners.kept(NOTHING) == {"m", "faults"}
    assert owners.kept(ALL_OLD) == set()
    owners.fold(_event(3, "batch-1", "BatchDeleted"))
    assert owners.kept(NOTHING) == set()


def test_a_batch_without_results_needs_its_lines_while_its_file_is_shown() -> None:
    events = [
        _event(1, "file-in", "FileCreated", content="m"),
        _event(2, "batch-1", "BatchSubmitted", content="m", input_file="file-in"),
        _event(3, "batch-1", "BatchEnded"),
    ]
    owners = _owners([_job("job-1", batch="batch-1")], events)
    assert owners.kept(NOTHING) == {"m", "job-1 text"}
    owners.fold(_event(4, "file-in", "FileDeleted"))
    assert owners.kept(NOTHING) == set()


def test_one_result_that_is_shown_keeps_the_lines() -> None:
    events = [_event(1, "batch-1", "BatchSubmitted", content="m")]
    events += [_event(2, f"file-{n}", "FileCreated", batch="batch-1") for n in (1, 2)]
    events += [_event(3, "batch-1", "BatchEnded"), _event(4, "file-1", "FileDeleted")]
    owners = _owners([_job("job-1", batch="batch-1")], events)
    assert owners.kept(ALL_OLD) == {"m", "job-1 text"}
    owners.fold(_event(5, "file-2", "FileDeleted"))
    assert owners.kept(NOTHING) == set()


def test_events_of_files_and_batches_that_are_unknown_change_nothing() -> None:
    events = [
        _event(1, "file-1", "FileDeleted"),
        _event(2, "batch-1", "BatchEnded"),
        _event(3, "file-2", "FileCreated", content="m", batch="batch-1"),
    ]
    assert _owners([_job("job-1", batch="batch-1")], events).kept(NOTHING) == {"m", "job-1 text"}


def test_the_turns_of_a_fork_count_from_those_that_it_inherits() -> None:
    events = [_event(1, "agent-b", "AgentForked", profile="p", turn=2)]
    turns = ((3, "job-1"), (4, "job-2"), (4, "job-3"))
    events += [_event(2, "agent-b", "AgentTurnAdded", turn=turn, job=job) for turn, job in turns]
    jobs = [_job(f"job-{n}", 3, agent="b") for n in (1, 2, 3)]
    assert _owners(jobs, events).kept(ALL_OLD) == {"p", "job-1 text", "job-3 text"}


def test_an_agent_is_there_from_its_registration_to_its_deletion() -> None:
    owners = _owners([_job("job-1", 4, ended_at=None, agent="a")], [])
    assert not owners.has_agent("a")
    owners.fold(_event(1, "agent-a", "AgentRegistered", profile="p"))
    assert owners.has_agent("a")
    owners.fold(_event(2, "agent-a", "AgentDeleted"))
    assert not owners.has_agent("a")
    assert owners.waiting() == 0, "the job was accepted afterwards"


def test_the_cut_to_size_keeps_the_other_rule_and_what_ends_later() -> None:
    created = _event(1, "file-1", "FileCreated", content="m", expires_at="7")
    owners = _owners([_job("job-1", ended_at="3"), _job("job-2", ended_at="9")], [created])
    sizes = {"job-1 text": 10, "job-2 text": 10, "m": 10}
    both = RetentionCut(ended_before="2", expired_by="8")
    assert cut_to_size(owners, sizes, 20, both, now="8") == both, "it fits already"
    smallest = cut_to_size(owners, sizes, 0, both, now="8")
    assert smallest.expired_by == "8"
    assert owners.kept(smallest) == {"job-2 text"}


def test_a_text_that_is_not_stored_has_no_size() -> None:
    owners = _owners([_job("job-1")], [])
    assert cut_to_size(owners, {}, 0, NOTHING, now="8") == NOTHING


def test_only_open_jobs_from_before_the_deletion_are_waited_for() -> None:
    jobs = [
        _job("job-1", 2, ended_at=None, agent="a"),
        _job("job-2", 4, ended_at=None, agent="a"),
        _job("job-3", 0, ended_at=None),
        _job("job-4", 2, agent="a"),
    ]
    assert _owners(jobs, []).waiting() == 0
    assert _owners(jobs, [_event(3, "agent-a", "AgentDeleted")]).waiting() == 1


def test_a_file_that_has_expired_keeps_no_lines() -> None:
    events = [
        _event(1, "file-in", "FileCreated", content="m", expires_at="7"),
        _event(2, "batch-1", "BatchSubmitted", content="m", input_file="file-in"),
        _event(3, "batch-1", "BatchEnded"),
        _event(4, "file-out", "FileCreated", batch="batch-1", part="output", expires_at="7"),
    ]
    jobs = [_job("job-1", 2, batch="batch-1")]
    assert "job-1 text" in _owners(jobs, events).kept(RetentionCut(ended_before="9"))
    assert "job-1 text" not in _owners(jobs, events).kept(ALL_OLD)


def test_the_end_of_a_batch_that_names_no_faults_keeps_those_of_before() -> None:
    events = [
        _event(1, "batch-1", "BatchSubmitted", content="m"),
        _event(2, "batch-1", "BatchFailed", errors="faults"),
        _event(3, "batch-1", "BatchEnded"),
    ]
    assert "faults" in _owners([], events).kept(NOTHING)


def test_a_replaced_profile_is_needed_no_longer() -> None:
    events = [
        _event(1, "agent-a", "AgentRegistered", profile="p"),
        _event(2, "agent-a", "AgentChanged", profile="q"),
    ]
    assert TextOwners([], {}, events, parts={}).kept(RetentionCut()) == {"q"}
