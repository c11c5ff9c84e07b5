"""The slot of a child, with a stand-in for its process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from ops.supervisor import child
from ops.supervisor.child import Child, StandbySlot
from ops.supervisor.parts import Part
from tests.support.polling import let_tasks_run

_PART = Part(name="worker", argv=("w",), grace_s=1.0, standby_argv=("s",), standby_after_s=0.0)
_ENVIRONMENT = {"MODEL": "demo"}


class FakeChild:
    """``Child`` as far as a slot uses it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.activated = self.discarded = False
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def activate(self, environment: Mapping[str, str]) -> bool:
        self.activated = environment == _ENVIRONMENT and not self.ended.done()
        self.discarded = not self.activated
        return self.activated

    def discard(self) -> None:
        self.discarded = True

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)


class Stage:
    """A slot, the children that it started, and the standbys that it reported."""

    def __init__(self, part: Part = _PART) -> None:
        self.children: list[FakeChild] = []
        self.changes: list[int | None] = []
        self.refused = False
        self.slot = StandbySlot(
            part,
            launch=self._launch,
            on_change=lambda child: self.changes.append(child.pid if child else None),
            logger=structlog.stdlib.get_logger(),
        )

    def _launch(self, _part: Part, _environment: Mapping[str, str]) -> Child:
        if self.refused:
            raise OSError("no memory")
        self.children.append(FakeChild(100 + len(self.children)))
        return cast("Child", self.children[-1])

    async def filled(self) -> FakeChild:
        self.slot.refill(_ENVIRONMENT)
        await let_tasks_run()
        return self.children[-1]


def run(story: Callable[[], Any]) -> None:
    asyncio.run(story())


def test_standby_is_activated_once() -> None:
    async def story() -> None:
        stage = Stage()
        child = await stage.filled()
        assert not child.activated
        assert stage.slot.take(_ENVIRONMENT) is cast("Child", child)
        assert child.activated
        assert not child.discarded
        assert stage.slot.take(_ENVIRONMENT) is None
        assert stage.changes == [100, None]

    run(story)


def test_standby_with_other_settings_is_killed() -> None:
    async def story() -> None:
        stage = Stage()
        child = await stage.filled()
        assert stage.slot.take({"MODEL": "another"}) is None
        assert child.discarded
        assert not child.activated
        assert stage.changes == [100, None]

    run(story)


def test_standby_that_has_just_ended_is_not_used() -> None:
    async def story() -> None:
        stage = Stage()
        child = await stage.filled()
        child.ended.set_result(-9)
        assert stage.slot.take(_ENVIRONMENT) is None
        assert child.discarded

    run(story)


def test_part_that_dies_young_has_no_standby() -> None:
    async def story() -> None:
        stage = Stage(Part(name="worker", argv=("w",), grace_s=1.0, standby_argv=("s",)))
        for _ in range(3):
            stage.slot.refill(_ENVIRONMENT)
            await let_tasks_run()
            assert stage.slot.take(_ENVIRONMENT) is None
        assert not stage.children
        stage.slot.close()

    run(story)


def test_refill_and_close_leave_no_standby_behind() -> None:
    async def story() -> None:
        stage = Stage()
        first, second = await stage.filled(), await stage.filled()
        assert first.discarded
        assert not second.discarded
        stage.slot.close()
        await let_tasks_run()
        assert second.discarded
        assert len(stage.children) == 2
        assert stage.changes == [100, None, 101, None]

    run(story)


def test_standby_that_ends_is_reported_and_replaced_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "STANDBY_RETRY_S", 0.0)

    async def story() -> None:
        stage = Stage()
        child = await stage.filled()
        with capture_logs() as lines:
            child.ended.set_result(-9)
            await let_tasks_run()
        assert [(line["event"], line["returncode"]) for line in lines] == [
            ("the standby ended", -9)
        ]
        assert child.discarded
        assert stage.changes == [100, None, 101]
        stage.slot.close()

    run(story)


def test_standby_that_cannot_be_started_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STANDBY_RETRY_S", 0.0)

    async def story() -> None:
        stage = Stage()
        stage.refused = True
        with capture_logs() as lines:
            stage.slot.refill(_ENVIRONMENT)
            await let_tasks_run(3)
        assert lines[0]["why"] == "no memory"
        stage.refused = False
        await let_tasks_run()
        assert [child.pid for child in stage.children] == [100]
        stage.slot.close()

    run(story)


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, True),
        ({"SEMANTIC_REDIS__URL": "redis://new"}, True),
        ({"MODEL": "another"}, False),
    ],
)
def test_process_that_waits_gets_a_late_address_and_no_other_setting(
    given: Mapping[str, str], *, fits: bool
) -> None:
    async def story() -> None:
        lifeline, end = os.pipe()
        part = Part(name="worker", argv=("/bin/cat",), grace_s=1.0)
        child = Child.start(
            part,
            environment=_ENVIRONMENT,
            lifeline=lifeline,
            put=lambda _: None,
            waits_as=("/bin/sleep", "600"),
        )
        assert child.activate({**_ENVIRONMENT, **given}) is fits
        if fits:
            child.discard()
        assert await child.wait() == -signal.SIGKILL
        os.close(lifeline)
        os.close(end)

    run(story)
