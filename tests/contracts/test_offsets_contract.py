"""What is behind an offset of an answer, from the items and from each log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.dialects.jobs.durable import MessagesBeyond, Offset, begin_at, parse_offset
from api.errors import TransportError
from domain.audit.recorded_answers import JobRecords
from domain.chat.items import Finished, Started, StreamItem, Text
from domain.chat.stored_answer import StoredAnswer
from domain.events.job import AttemptFailed, JobFailed, JobRetried
from domain.values import JobId, StopReason, StreamName, Usage, digest_of
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, Store, opened_store
from tests.support.fakes.broker import FakeItems

JOB = JobId("job-1")
PIECES = ("Hel", "lo, ", "wor", "ld")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def _read(store: Store, items: FakeItems, offset: str) -> tuple[list[dict[str, Any]], str, bool]:
    records = JobRecords(log=store.log, payloads=store.log, views=store.views)
    epoch, known = records.answer_so_far(JOB, items)
    tail = MessagesBeyond(Offset(epoch))
    tail.add(known)
    reader = MessagesBeyond(begin_at(parse_offset(offset), tail.offset))
    messages = reader.add(known)
    return messages, str(reader.offset), reader.offset.has_end


def _text(messages: list[dict[str, Any]]) -> str:
    return "".join(one.get("text", "") for one in messages)


def _item(n: int, attempt: int, body: Any) -> tuple[JobId, StreamItem]:
    return JOB, StreamItem(n=n, attempt=attempt, body=body)


def test_each_offset_has_the_rest_once_over_a_death_and_a_loss_of_the_items(store: Store) -> None:
    items = FakeItems()
    log, stream = store.log, StreamName(JOB)
    log.append(stream, [draft(submitted()), draft(started())], expected_version=0)
    offsets = ["-1"]

    def look(begin: int) -> None:
        """Read from each offset so far."""
        last = ""
        for count, offset in enumerate(offsets):
            messages, last, is_closed = _read(store, items, offset)
            assert _text(messages) == "".join(PIECES[max(0, count - 1) : begin])
            assert not is_closed
        offsets.append(last)

    items.publish([_item(0, 1, Started(prompt_tokens=1, cached_tokens=0))])
    look(0)
    for given, piece in enumerate(PIECES, start=1):
        if given == 3:  # the worker dies, and the next attempt continues
            died = AttemptFailed(attempt=1, error="worker_lost", message="x", retryable=True)
            again = started(attempt=2)
            log.append(stream, [draft(died), draft(again)], expected_version=2)
        ids = (given,)
        items.publish([_item(given, 1 if given < 3 else 2, Text(text=piece, ids=ids))])
        look(given)
        assert offsets[-1] > offsets[-2]
    answer = StoredAnswer(text="".join(PIECES), thinking="").to_bytes()
    end = replace(completed(attempt=2), output=digest_of(answer))
    version = len(log.load(stream))
    payloads = {digest_of(answer): answer}
    log.append(stream, [draft(end)], expected_version=version, payloads=payloads)
    finished = Finished(stop_reason=StopReason.END_TURN, usage=Usage())
    items.publish([_item(len(PIECES) + 1, 2, finished)])
    for is_lost in (False, True):
        if is_lost:
            items.forget(JOB)
        for count, offset in enumerate(offsets[1:]):
            messages, last, is_closed = _read(store, items, offset)
            assert _text(messages) == "".join(PIECES[count:])
            assert [one["kind"] for one in messages].count("finished") == 1
            assert messages[-1]["kind"] == "finished"
            assert is_closed
            assert _read(store, items, last) == ([], last, True)


def test_an_end_of_an_earlier_life_is_before_no_part_of_the_answer(store: Store) -> None:
    items, log, stream = FakeItems(), store.log, StreamName(JOB)
    failed = JobFailed(error="engine_failure", message="x")
    log.append(stream, [draft(submitted()), draft(failed)], expected_version=0)
    messages, end, is_closed = _read(store, items, "-1")
    assert ([one["kind"] for one in messages], is_closed) == (["failed"], True)
    again = [draft(JobRetried(reason="api")), draft(started(attempt=2))]
    log.append(stream, again, expected_version=2)
    answer = StoredAnswer(text="late").to_bytes()
    completion = replace(completed(attempt=2), output=digest_of(answer))
    for ending in ((), (draft(completion),)):
        if ending:
            payloads = {digest_of(answer): answer}
            log.append(stream, ending, expected_version=4, payloads=payloads)
        with pytest.raises(TransportError) as gone:
            _read(store, items, end)
        assert (gone.value.status, gone.value.code) == (410, "offset_gone")
    assert _text(_read(store, items, "-1")[0]) == "late"
