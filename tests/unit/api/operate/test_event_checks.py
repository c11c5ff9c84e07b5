"""Pages of events from the newest back, the check of the chain, and the state after an event."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from domain.events.cache import AgentCacheSaved
from domain.events.event import Event
from domain.events.model import ModelLoaded, ModelUnloaded
from domain.events.worker import AdmissionPaused, LogArchived
from domain.values import JobId, StreamName, WorkerId
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event

END = 2**63 - 1


def _append(api: FakeApi, stream: str, *events: Event) -> None:
    name = StreamName(stream)
    version = len(api.log.load(name))
    api.log.append(name, [draft(event) for event in events], expected_version=version)


def _loaded(worker: str, model: str) -> ModelLoaded:
    return ModelLoaded(
        worker=WorkerId(worker),
        model=model,
        fingerprint="sha256:" + "0" * 64,
        context_length=4096,
        description="",
        created_at="2026-01-01T00:00:00.000000Z",
        load_ms=1.0,
    )


def _saved(tokens: int) -> AgentCacheSaved:
    return AgentCacheSaved(
        job=JobId("job-1"), fingerprint="sha256:0", blocks=(), tail=None, tokens=tokens
    )


def test_events_are_paged_from_the_newest_back() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for _ in range(5):
                _append(api, "w-1", worker_event())
            page = await api.json("GET", f"/v1/events?before={END}&limit=2")
            assert [event["position"] for event in page["data"]] == [5, 4]
            assert (page["has_more"], page["next_before"], page["next_after"]) == (True, 4, 5)
            rest = await api.json("GET", "/v1/events?before=4&limit=3")
            assert [event["position"] for event in rest["data"]] == [3, 2, 1]
            assert (rest["has_more"], rest["next_before"]) == (False, None)
            new = await api.json("GET", f"/v1/events?before={END}&after=3")
            assert [event["position"] for event in new["data"]] == [5, 4]
            none = await api.json("GET", "/v1/events?before=1")
            assert (none["data"], none["next_before"]) == ([], None)

    asyncio.run(scenario())


def test_a_chain_is_checked_stretch_by_stretch() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for _ in range(5):
                _append(api, "w-1", worker_event())
            after, checked = 0, 0
            while True:
                found = await api.json("GET", f"/v1/events/check?after={after}&limit=2")
                assert found["ok"]
                assert found["before"]["position"] == after
                after, checked = found["next_after"], checked + found["events"]
                if not found["has_more"]:
                    break
            assert checked == 5
            assert found["through"] == found["head"]
            beyond = await api.json("GET", "/v1/events/check?after=99")
            assert (beyond["ok"], beyond["events"]) == (True, 0)

    asyncio.run(scenario())


def test_an_altered_event_is_a_fault_of_the_chain() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for _ in range(5):
                _append(api, "w-1", worker_event())
            events: list[Any] = api.log._events
            events[2] = replace(events[2], data={"worker": "another"})
            found = await api.json("GET", "/v1/events/check")
            assert not found["ok"]
            assert found["fault"]["position"] == 3
            assert (found["through"]["position"], found["has_more"]) == (2, False)
            rest = await api.json("GET", "/v1/events/check?after=3")
            assert rest["ok"]

    asyncio.run(scenario())


def test_a_check_begins_behind_the_archives() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for _ in range(3):
                _append(api, "w-1", worker_event())
            second = api.log.load(StreamName("w-1"))[1]
            archived = LogArchived(
                first_position=1,
                last_position=2,
                base_hash="0" * 64,
                last_hash=second.hash,
                file="1.jsonl",
            )
            _append(api, "log", archived)
            found = await api.json("GET", "/v1/events/check")
            assert (found["ok"], found["archived_through"], found["events"]) == (True, 2, 2)

    asyncio.run(scenario())


def test_the_state_after_an_event_has_the_jobs_and_models_of_that_time() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "model-m", _loaded("w-1", "m"))
            _append(api, "job-a", submitted(agent="ann"))
            _append(api, "job-a", started())
            _append(api, "job-b", submitted())
            _append(api, "job-a", completed())
            _append(api, "agent-ann", _saved(700))
            _append(api, "engine", AdmissionPaused(reason=None))
            _append(api, "model-m", ModelUnloaded(worker=WorkerId("w-1"), model="m"))

            early = await api.json("GET", "/v1/events/state?at=4")
            assert early["type"] == "JobSubmitted"
            assert [(job["id"], job["status"]) for job in early["jobs"]] == [
                ("job-b", "queued"),
                ("job-a", "running"),
            ]
            assert early["counts"] == {"queued": 1, "running": 1}
            assert early["models"] == [{"worker": "w-1", "model": "m"}]
            assert early["admission"] == "open"
            ann = {"agent_id": "ann", "jobs": 1, "open_jobs": 1, "context_tokens": None}
            assert early["agents"] == [ann]
            saved = await api.json("GET", "/v1/events/state?at=6")
            assert saved["agents"] == [ann | {"open_jobs": 0, "context_tokens": 700}]

            now = await api.json("GET", "/v1/events/state")
            assert now["position"] == now["head"]["position"] == 8
            assert (now["admission"], now["models"]) == ("paused", [])
            assert now["counts"] == {"queued": 1, "completed": 1}
            beyond = await api.json("GET", "/v1/events/state?at=99&limit=1")
            assert beyond["position"] == 8
            assert ([job["id"] for job in beyond["jobs"]], beyond["has_more"]) == (["job-b"], True)
            first = await api.json("GET", "/v1/events/state?at=0")
            assert (first["type"], first["jobs"], first["models"]) == (None, [], [])

    asyncio.run(scenario())
