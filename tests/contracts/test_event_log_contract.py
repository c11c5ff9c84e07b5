from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from domain.errors import ConcurrencyConflict, PayloadMissing
from domain.events.agent import AgentDeleted
from domain.events.event import Event
from domain.events.job import JobAttached, JobCancelRequested
from domain.job.listing import JobFilter
from domain.job.state import Job, fold_recorded
from domain.log.ports import EventLog
from domain.log.record import (
    GENESIS_HASH,
    Append,
    Draft,
    EventFilter,
    LogHead,
    RecordedEvent,
    verify_link,
)
from domain.values import (
    AgentId,
    Digest,
    EventId,
    JobId,
    JobStatus,
    StreamName,
    Usage,
    digest_of,
    rfc3339,
)
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.log_stores import STORES, Store, opened_store

JOB = StreamName("job-1")
WORKER = StreamName("worker-1")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def _walk(log: EventLog) -> LogHead:
    head = LogHead(position=0, hash=GENESIS_HASH)
    for event in log.select(limit=10_000):
        head = verify_link(event, head)
    return head


def test_an_empty_log_has_the_genesis_head(store: Store) -> None:
    assert store.log.head() == LogHead(position=0, hash=GENESIS_HASH)
    assert store.log.select() == ()
    assert store.log.load(JOB) == ()
    assert store.log.select_before(EventFilter(types=["JobSubmitted"])) == ()


def test_append_returns_what_load_and_read_all_return(store: Store) -> None:
    recorded = store.log.append(
        JOB, [draft(submitted(agent="ä😀")), draft(started())], expected_version=0
    )

    assert store.log.load(JOB) == recorded
    assert store.log.select() == recorded
    assert [event.version for event in recorded] == [1, 2]
    assert [event.position for event in recorded] == [1, 2]
    assert recorded[0].recorded_at == "2026-01-01T00:00:00.000000Z"
    assert store.log.head() == LogHead(position=2, hash=recorded[1].hash)


def test_an_event_is_never_recorded_before_the_one_in_front_of_it(store: Store) -> None:
    store.clock.advance(60)
    (first,) = store.log.append(JOB, [draft(submitted())], expected_version=0)
    store.clock.advance(-3600)
    (second,) = store.log.append(JOB, [draft(started())], expected_version=1)
    store.clock.advance(3600)
    (third,) = store.log.append(WORKER, [draft(worker_event())], expected_version=0)
    assert first.recorded_at == second.recorded_at == third.recorded_at


def test_appends_to_several_streams_form_one_chain_without_gaps(store: Store) -> None:
    store.log.append(JOB, [draft(submitted())], expected_version=0)
    store.log.append(WORKER, [draft(worker_event())], expected_version=0)
    store.log.append(JOB, [draft(started()), draft(completed())], expected_version=1)

    assert _walk(store.log) == store.log.head()
    assert store.log.head().position == 4


@pytest.mark.parametrize("expected", [0, 2, 7])
def test_another_expected_version_is_a_conflict_and_writes_nothing(
    store: Store, expected: int
) -> None:
    store.log.append(JOB, [draft(submitted())], expected_version=0)
    before = store.log.head()
    payload = b"not to be stored"

    with pytest.raises(ConcurrencyConflict) as caught:
        store.log.append(
            JOB,
            [draft(started())],
            expected_version=expected,
            payloads={digest_of(payload): payload},
        )

    assert (caught.value.expected, caught.value.actual) == (expected, 1)
    assert store.log.head() == before
    with pytest.raises(PayloadMissing):
        store.log.get(digest_of(payload))


def test_a_repeated_append_is_a_no_op_at_whatever_version(store: Store) -> None:
    first = [draft(submitted())]
    recorded = store.log.append(JOB, first, expected_version=0)
    store.log.append(JOB, [draft(started())], expected_version=1)

    assert store.log.append(JOB, first, expected_version=0) == recorded
    assert store.log.append(JOB, first, expected_version=2) == recorded
    assert store.log.head().position == 2


def test_a_partly_repeated_append_adds_the_rest_at_the_right_version(store: Store) -> None:
    first, second = draft(submitted()), draft(started())
    (one,) = store.log.append(JOB, [first], expected_version=0)

    with pytest.raises(ConcurrencyConflict):
        store.log.append(JOB, [first, second], expected_version=0)
    recorded = store.log.append(JOB, [first, second], expected_version=1)

    assert recorded[0] == one
    assert recorded[1].version == 2
    assert store.log.load(JOB) == recorded


def test_an_append_to_two_streams_is_one(store: Store) -> None:
    job, other = submitted(), worker_event()
    also = Append(stream=WORKER, drafts=(draft(other),), expected_version=0)
    made = draft(job)
    recorded = store.log.append(JOB, [made], expected_version=0, also=also)
    assert [event.stream for event in recorded] == [JOB]
    assert [event.stream for event in store.log.select()] == [JOB, WORKER]
    _walk(store.log)
    assert store.log.append(JOB, [made], expected_version=0, also=also) == recorded
    assert store.log.head().position == 2


@pytest.mark.parametrize(("job_version", "also_version"), [(0, 0), (0, 2), (1, 1)])
def test_an_append_to_two_streams_is_refused_where_one_has_changed(
    store: Store, job_version: int, also_version: int
) -> None:
    store.log.append(WORKER, [draft(worker_event())], expected_version=0)
    payload = b"of the refused one"
    also = Append(
        stream=WORKER,
        drafts=(draft(worker_event()),),
        expected_version=also_version,
        payloads={digest_of(payload): payload},
    )
    with pytest.raises(ConcurrencyConflict):
        store.log.append(JOB, [draft(submitted())], expected_version=job_version, also=also)
    assert store.log.head().position == 1
    assert store.views.get(JobId(JOB)) is None
    with pytest.raises(PayloadMissing):
        store.log.get(digest_of(payload))


def test_two_parts_of_an_append_have_streams_of_their_own(store: Store) -> None:
    also = Append(stream=JOB, drafts=(draft(started()),), expected_version=1)
    with pytest.raises(ValueError, match="share a stream"):
        store.log.append(JOB, [draft(submitted())], expected_version=0, also=also)
    with pytest.raises(ValueError, match="needs drafts"):
        store.log.append(
            JOB,
            [draft(submitted())],
            expected_version=0,
            also=Append(stream=WORKER, drafts=(), expected_version=0),
        )


def test_an_event_id_of_another_stream_is_refused(store: Store) -> None:
    store.log.append(WORKER, [draft(worker_event(), event_id="e")], expected_version=0)

    with pytest.raises(ValueError, match="stands in"):
        store.log.append(JOB, [draft(submitted(), event_id="e")], expected_version=0)


@pytest.mark.parametrize("ids", [[], ["e", "e"]])
def test_no_drafts_or_one_id_twice_is_refused(store: Store, ids: Sequence[str]) -> None:
    drafts = [draft(worker_event(), event_id=one) for one in ids]

    with pytest.raises(ValueError, match="event id of its own"):
        store.log.append(WORKER, drafts, expected_version=0)


def test_a_payload_with_another_digest_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="payload"):
        store.log.append(
            WORKER, [draft(worker_event())], expected_version=0, payloads={digest_of(b"a"): b"b"}
        )
    assert store.log.head().position == 0


def test_payloads_are_stored_with_the_events_and_kept_once(store: Store) -> None:
    payload = b"\x00\xff text"
    payloads: Mapping[Digest, bytes] = {digest_of(payload): payload, digest_of(b""): b""}
    store.log.append(WORKER, [draft(worker_event())], expected_version=0, payloads=payloads)
    store.log.append(WORKER, [draft(worker_event())], expected_version=1, payloads=payloads)

    assert store.log.get(digest_of(payload)) == payload
    assert store.log.get(digest_of(b"")) == b""
    with pytest.raises(PayloadMissing):
        store.log.get(digest_of(b"other"))


def test_causes_and_correlations_are_kept(store: Store) -> None:
    one = Draft(
        event_id=EventId("b"),
        event=worker_event(),
        correlation_id="req-9",
        causation_id=EventId("a"),
    )
    store.log.append(WORKER, [one], expected_version=0)

    (event,) = store.log.load(WORKER)
    assert (event.correlation_id, event.causation_id, event.event_id) == ("req-9", "a", "b")


def test_a_lone_surrogate_in_an_event_survives_and_verifies(store: Store) -> None:
    event = JobCancelRequested(reason="\ud800 \\ \\ud800 \x00 \u2028")
    store.log.append(JOB, [draft(submitted(model="\udfff")), draft(event)], expected_version=0)

    assert store.log.load(JOB)[1].data == {"reason": event.reason}
    assert _walk(store.log) == store.log.head()


def test_load_skips_what_comes_before_the_version(store: Store) -> None:
    recorded = store.log.append(
        JOB, [draft(submitted()), draft(started()), draft(completed())], expected_version=0
    )

    assert store.log.load(JOB, after_version=1) == recorded[1:]
    assert store.log.load(JOB, after_version=3) == ()


def test_select_pages_and_filters(store: Store) -> None:
    store.log.append(JOB, [draft(submitted()), draft(started())], expected_version=0)
    store.log.append(WORKER, [draft(worker_event())], expected_version=0)
    store.log.append(JOB, [draft(completed())], expected_version=2)

    def positions(
        *, after: int = 0, limit: int = 100, stream: str | None = None, types: Sequence[str] = ()
    ) -> list[int]:
        wanted = EventFilter(stream=stream, types=types)
        return [one.position for one in store.log.select(wanted, after=after, limit=limit)]

    assert positions(limit=2) == [1, 2]
    assert positions(after=2) == [3, 4]
    assert positions(after=4) == []
    assert positions(stream=JOB) == [1, 2, 4]
    assert positions(stream=JOB, after=1, limit=1) == [2]
    assert positions(types=["JobCompleted", "WorkerDraining"]) == [3, 4]
    assert positions(types=["JobCompleted"], stream=WORKER) == []


def test_events_are_selected_by_agent_time_and_several_types(store: Store) -> None:
    ann, bob = StreamName("job-ann"), StreamName("job-bob")
    store.log.append(ann, [draft(submitted(agent="ann"))], expected_version=0)
    store.log.append(bob, [draft(submitted(agent="bob"))], expected_version=0)
    noon = rfc3339(store.clock.now())
    store.clock.advance(60)
    later = rfc3339(store.clock.now())
    store.log.append(ann, [draft(started()), draft(completed())], expected_version=1)
    deleted = AgentDeleted(agent=AgentId("ann"))
    store.log.append(StreamName("agent-ann"), [draft(deleted)], expected_version=0)

    def positions(*, after: int = 0, limit: int = 100, **wanted: Any) -> list[int]:
        found = store.log.select(EventFilter(**wanted), after=after, limit=limit)
        return [event.position for event in found]

    assert positions() == [1, 2, 3, 4, 5]
    assert positions(agent="ann") == [1, 3, 4, 5]
    assert positions(agent="ann", after=1, limit=2) == [3, 4]
    assert positions(agent="nobody") == []
    assert positions(since=later) == [3, 4, 5]
    assert positions(until=later) == positions(since=noon, until=later) == [1, 2]
    assert positions(until=noon) == []
    assert positions(types=("JobSubmitted", "JobCompleted"), agent="ann") == [1, 4]
    assert positions(types=("JobSubmitted",), stream="job-bob", since=later) == []

    def newest(before: int, limit: int = 100, **wanted: Any) -> list[int]:
        found = store.log.select_before(EventFilter(**wanted), before=before, limit=limit)
        return [event.position for event in found]

    assert newest(6) == newest(2**63 - 1) == [1, 2, 3, 4, 5]
    assert newest(5, 2) == [3, 4]
    assert newest(5, 2, agent="ann") == [3, 4]
    assert newest(4, 2, agent="ann") == [1, 3]
    assert newest(1) == newest(0) == []
    assert newest(6, 1, stream="job-bob") == [2]


def test_latest_returns_the_last_of_a_type(store: Store) -> None:
    store.log.append(WORKER, [draft(worker_event("a"))], expected_version=0)
    recorded = store.log.append(WORKER, [draft(worker_event("b"))], expected_version=1)
    store.log.append(JOB, [draft(submitted())], expected_version=0)

    last = store.log.select_before(EventFilter(types=["WorkerDraining"]), limit=1)
    assert last == recorded[:1]


def test_of_many_racing_for_one_version_exactly_one_wins(store: Store) -> None:
    racers = 8
    barrier = threading.Barrier(racers)

    def race(_: int) -> bool:
        barrier.wait()
        try:
            store.log.append(JOB, [draft(submitted())], expected_version=0)
        except ConcurrencyConflict:
            return False
        return True

    with ThreadPoolExecutor(racers) as pool:
        wins = list(pool.map(race, range(racers)))

    assert wins.count(True) == 1
    assert store.log.head().position == 1


def test_concurrent_appends_form_one_chain(store: Store) -> None:
    def write(number: int) -> None:
        stream = StreamName(f"worker-{number}")
        for version in range(10):
            store.log.append(stream, [draft(worker_event())], expected_version=version)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))

    assert _walk(store.log) == store.log.head()
    assert store.log.head().position == 80


# --- jobs ----------------------------------------------------------------------------------


def _submit(store: Store, number: int, *, agent: str | None = None) -> JobId:
    job_id = JobId(f"job-{number}")
    store.log.append(StreamName(job_id), [draft(submitted(agent=agent))], expected_version=0)
    return job_id


def _add(store: Store, job_id: JobId, *events: Event) -> None:
    version = len(store.log.load(StreamName(job_id)))
    store.log.append(
        StreamName(job_id), [draft(event) for event in events], expected_version=version
    )


def _fold(events: Sequence[RecordedEvent]) -> Job | None:
    view: Job | None = None
    for event in events:
        view = fold_recorded(view, event)
    return view


def test_a_job_is_listed_as_soon_as_its_append_returns(store: Store) -> None:
    job_id = _submit(store, 1, agent="a")
    store.clock.advance(1.5)
    _add(store, job_id, JobAttached(reason="again"), started())
    store.clock.advance(1)
    _add(store, job_id, completed())

    view = store.views.get(job_id)
    assert view is not None
    assert view == _fold(store.log.load(StreamName(job_id)))
    assert view.status is JobStatus.COMPLETED
    assert view.usage == Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
    assert view.started_at == "2026-01-01T00:00:01.500000Z"
    assert view.position == 4


def test_an_unknown_job_has_no_row(store: Store) -> None:
    assert store.views.get(JobId("job-none")) is None


def test_pages_go_from_new_to_old_in_order_of_acceptance(store: Store) -> None:
    # Ids need not sort as the jobs were accepted: a caller draws the id before it submits.
    ids = [_submit(store, number) for number in (3, 1, 2)]
    _add(store, ids[0], started())

    first = store.views.page(limit=2)
    rest = store.views.page(limit=2, before=first.jobs[-1].id)

    assert [view.id for view in first.jobs] == [ids[2], ids[1]]
    assert first.has_more
    assert [view.id for view in rest.jobs] == [ids[0]]
    assert not rest.has_more
    assert store.views.page(limit=2, before=JobId("job-none")).jobs == ()


def test_pages_are_filtered_by_status_and_agent(store: Store) -> None:
    one = _submit(store, 1, agent="a")
    two = _submit(store, 2, agent="b")
    three = _submit(store, 3, agent="a")
    _add(store, one, started(), completed())

    def ids(status: JobStatus | None = None, agent: str | None = None) -> list[JobId]:
        page = store.views.page(JobFilter(status=status, agent=agent), limit=10)
        return [view.id for view in page.jobs]

    assert ids(agent="a") == [three, one]
    assert ids(status=JobStatus.QUEUED) == [three, two]
    assert ids(status=JobStatus.COMPLETED, agent="a") == [one]
    assert ids(status=JobStatus.COMPLETED, agent="b") == []


def test_unfinished_lists_queued_and_running_jobs_from_old_to_new(store: Store) -> None:
    one, two, three = (_submit(store, number) for number in (2, 1, 3))
    _add(store, one, started())
    _add(store, two, started(), completed())

    assert [view.id for view in store.views.unfinished()] == [one, three]


def test_a_refused_append_leaves_the_jobs_as_they_were(store: Store) -> None:
    job_id = _submit(store, 1)
    before = store.views.get(job_id)

    with pytest.raises(ConcurrencyConflict):
        store.log.append(StreamName(job_id), [draft(started())], expected_version=5)

    assert store.views.get(job_id) == before


def test_a_job_stream_that_does_not_begin_with_its_acceptance_is_refused(store: Store) -> None:
    with pytest.raises(AssertionError):
        store.log.append(JOB, [draft(started())], expected_version=0)
    assert store.log.head().position == 0
    assert store.views.unfinished() == ()
