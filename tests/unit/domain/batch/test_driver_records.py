"""What the driver records of lines and of the files of their answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from domain.batch.driver import file_of_part
from domain.batch.ports import BatchLine
from domain.batch.state import Batch, BatchId, job_of_line
from domain.errors import InvalidRequest
from domain.log.codec import texts_of
from domain.log.trace import new_trace, parse_traceparent
from domain.values import Digest, Owner, SamplingWish, StreamName, digest_of
from tests.support.builders.batch_world import DAY_S, BatchWorld
from tests.support.fakes.batches import PlainLines

EXPIRES_AT = "2026-01-02T00:00:00.000000Z"
#: What the owner of a batch sets, for each of its lines.
FACTS: Mapping[str, Any] = {
    "client": "nightly",
    "trace": str(new_trace()),
    "owner": Owner("alice"),
    "cache_owner": Owner("team"),
}


class WiredLines(PlainLines):
    """Lines have a wire form; faults name the batch, and its files have a byte more a line."""

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        super().__init__(sizes)
        self.read_of: list[BatchId] = []

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        self.read_of.append(batch.id)
        line = super().read(batch, raw)
        wire = b"wire:" + raw
        return BatchLine(
            model=line.model, request=line.request, wire=wire, bound_model=line.bound_model
        )

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        return [{**one, "of": batch.id} for one in super().faults(batch, lines)]

    def measure(self, batch: Batch) -> Mapping[str, int]:
        return {part: size + batch.facts.lines for part, size in self.sizes.items()}


def recorded(world: BatchWorld, batch_id: BatchId, line: int, kind: str) -> Mapping[str, Any]:
    events = world.log.read_all(stream=StreamName(job_of_line(batch_id, line)), types=[kind])
    return {**events[0].data, **texts_of(events[0])}


def test_job_of_a_line_has_the_terms_of_its_batch() -> None:
    with BatchWorld() as world:
        world.use(attempts_max=7, protocol=WiredLines())
        batch_id = world.submit_batch("night one", **FACTS)
        world.step()
        job = recorded(world, batch_id, 0, "JobSubmitted")
        wire = digest_of(b"wire:night one")
        wanted = {
            "protocol": "anthropic",
            "model": "m",
            "priority": "batch",
            "client_name": digest_of(b"nightly"),
            "attempts_max": 7,
            "worker_deaths_max": 7,
            "deadline": EXPIRES_AT,
            "finish_deadline": EXPIRES_AT,
            "ordered": False,
            "wire": wire,
            "bound_model": "night",
            "waits_for_model": True,
            "trace_link": FACTS["trace"],
            "owner": "alice",
            "cache_owner": "team",
        }
        assert {name: job[name] for name in wanted} == wanted
        assert world.log.get(wire) == b"wire:night one"


def test_line_that_is_no_request_is_recorded_with_the_terms_of_its_batch() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "bad", **FACTS)
        world.step()
        job = recorded(world, batch_id, 1, "JobSubmitted")
        wanted = {
            "protocol": "anthropic",
            "model": "unknown",
            "request": digest_of(b"bad"),
            "max_tokens": 0,
            "priority": "batch",
            "attempts_max": 1,
            "client_name": digest_of(b"nightly"),
            "ordered": False,
            "trace_link": FACTS["trace"],
            "owner": "alice",
        }
        assert {name: job[name] for name in wanted} == wanted
        assert job["sampling"] == asdict(SamplingWish())
        assert world.log.get(Digest(job["request"])) == b"bad"
        attempt = recorded(world, batch_id, 1, "AttemptFailed")
        assert (attempt["attempt"], attempt["retryable"]) == (0, False)


class NamedLines(PlainLines):
    """Every line is refused, and names a model."""

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        del batch, raw
        return BatchLine(model="large", request=InvalidRequest("no"))


def test_line_that_is_no_request_keeps_the_model_that_it_names() -> None:
    with BatchWorld() as world:
        world.use(protocol=NamedLines())
        batch_id = world.submit_batch("one")
        world.step()
        assert recorded(world, batch_id, 0, "JobSubmitted")["model"] == "large"


@pytest.mark.parametrize("line", ["one", "bad"])
@pytest.mark.parametrize("sampled", [False, True])
def test_trace_of_a_line_is_exported_if_that_of_its_batch_is(line: str, *, sampled: bool) -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch(line, trace=str(new_trace(sampled=sampled)))
        world.step()
        trace = parse_traceparent(recorded(world, batch_id, 0, "JobSubmitted")["trace"])
        assert trace is not None
        assert trace.is_sampled is sampled


def test_lines_are_read_as_those_of_their_batch() -> None:
    with BatchWorld() as world:
        lines = WiredLines()
        world.use(protocol=lines)
        batch_id = world.submit_batch("one", "two")
        world.step()
        assert lines.read_of == [batch_id] * 2


def test_faults_are_those_of_the_batch_in_the_words_of_its_protocol() -> None:
    with BatchWorld() as world:
        world.use(protocol=WiredLines())
        batch_id = world.submit_batch("fault", is_checked=False)
        world.step()
        errors = world.batch(batch_id).errors
        assert errors is not None
        assert world.log.get(errors) == f'[{{"line":1,"of":"{batch_id}"}}]'.encode()


def test_batch_whose_lines_were_erased_before_the_check_fails_with_the_reason() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", is_checked=False)
        world.log.lose_payload(world.batch(batch_id).facts.content)
        assert world.step() == 0
        errors = world.batch(batch_id).errors
        assert errors is not None
        fault = b'[{"code":"file_erased","message":"the lines are not stored any more"}]'
        assert world.log.get(errors) == fault


def test_file_of_the_answers_belongs_to_the_batch_and_its_owner() -> None:
    with BatchWorld() as world:
        world.use(protocol=WiredLines({"output": 12, "error": 3}), output_kept_s=DAY_S)
        batch_id = world.submit_batch("one", owner=Owner("alice"))
        world.step()
        world.work()
        world.step()
        files = world.log.read_all(types=["FileCreated"])
        assert {one.correlation_id for one in files} == {batch_id}
        assert [str(one.stream) for one in files] == [
            file_of_part(batch_id, "output"),
            file_of_part(batch_id, "error"),
        ]
        assert dict(files[0].data) == {
            "purpose": "batch_output",
            "bytes": 13,
            "content": None,
            "expires_at": EXPIRES_AT,
            "batch": batch_id,
            "part": "output",
            "owner": "alice",
        }


def test_owner_sets_for_how_long_the_file_of_the_answers_is_kept() -> None:
    with BatchWorld(sizes={"output": 12}) as world:
        world.submit_batch("one", output_kept_s=60)
        world.step()
        world.work()
        world.step()
        (file,) = world.log.read_all(types=["FileCreated"])
        assert file.data["expires_at"] == "2026-01-01T00:01:00.000000Z"


def test_id_of_a_result_file_begins_with_the_instant_of_its_batch() -> None:
    batch_id = BatchId("batch-0123456789abcdef0123456789abcdef")
    output = file_of_part(batch_id, "output")
    assert output == "file-0123456789ab0e0c374fb5dd82d3cd7a"
    assert output != file_of_part(batch_id, "error")
