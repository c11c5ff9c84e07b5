"""Random histories of agents (turns, failures, forks, deletions), compared with a model.

Each step reads everything from the log, as after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from api.dialects.agents.bodies import TurnBody
from api.dialects.agents.turns import add_turn
from api.http.messages import Request
from domain.agent.agents import AgentRecords
from domain.agent.state import Profile
from domain.chat.request import ChatRequest
from domain.errors import AgentExists, AgentNotFound, AgentTurnConflict, InvalidRequest
from domain.events.cache import AgentCacheSaved
from domain.log.record import Draft
from domain.values import AgentId, Digest, JobId, Priority, StreamName
from tests.support.builders.api import FakeApi

NAMES = ("a", "b")
names = st.sampled_from(NAMES)
REQUEST = Request(id="req-1", method="POST", path="/v1/agents/a/generate")


@dataclass
class Life:
    """The conversation of an agent so far, and its open question."""

    said: list[str] = field(default_factory=list)
    open_job: JobId | None = None
    asked: str = ""

    @property
    def turns(self) -> int:
        return len(self.said) // 2


class AgentMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.api = FakeApi()
        self.lives: dict[str, Life] = {}
        self.count = 0

    def teardown(self) -> None:
        self.api.executor.shutdown()

    @property
    def _records(self) -> AgentRecords:
        return self.api.app.agent_records

    def _fresh(self, word: str) -> str:
        self.count += 1
        return f"{word} {self.count}"

    def _ask(self, name: str, text: str, expected: int | None) -> JobId:
        wire = TurnBody(prompt=text, expected_turn=expected)
        accepted, _ = add_turn(self.api.app, AgentId(name), wire, REQUEST)
        return accepted.job_id

    @rule(name=names)
    def make(self, name: str) -> None:
        if name not in self.lives:
            _, is_new = self._records.register(AgentId(name), Profile(), correlation_id="c")
            assert is_new
            self.lives[name] = Life()

    @rule(name=names, knows=st.booleans())
    def ask(self, name: str, knows: bool) -> None:  # noqa: FBT001 - drawn
        life = self.lives.get(name)
        text = self._fresh("question")
        if life is None:
            with pytest.raises(AgentNotFound):
                self._ask(name, text, None)
            return
        if life.open_job is not None:
            with pytest.raises(AgentTurnConflict) as refused:
                self._ask(name, text, life.turns if knows else None)
            assert (refused.value.turn, refused.value.job) == (life.turns, life.open_job)
            return
        life.open_job, life.asked = self._ask(name, text, life.turns if knows else None), text
        view = self.api.log.views.rows[life.open_job]
        request = ChatRequest.from_bytes(self.api.log.get(Digest(view.submitted.request)))
        assert [one.content for one in request.messages] == [*life.said, text]

    @rule(name=names, off=st.integers(1, 3))
    def ask_elsewhere(self, name: str, off: int) -> None:
        life = self.lives.get(name)
        if life is not None:
            jobs = len(self.api.log.views.rows)
            with pytest.raises(AgentTurnConflict) as refused:
                self._ask(name, "nothing", life.turns + off)
            assert refused.value.turn == life.turns
            assert len(self.api.log.views.rows) == jobs

    @precondition(lambda self: any(life.open_job for life in self.lives.values()))
    @rule(data=st.data(), has_answer=st.booleans())
    def end(self, data: st.DataObject, has_answer: bool) -> None:  # noqa: FBT001 - drawn
        waiting = [life for life in self.lives.values() if life.open_job]
        life = data.draw(st.sampled_from(waiting))
        job_id = life.open_job
        assert job_id is not None
        if has_answer:
            answer = self._fresh("answer")
            agent = self.api.log.views.rows[job_id].submitted.agent
            assert self.api.broker.queue.remove(job_id, Priority.INTERACTIVE, line=agent)
            self.api.begin(job_id)
            self.api.complete(job_id, answer)
            life.said += [life.asked, answer]
        else:
            self._cancel(job_id)
        life.open_job = None

    @rule(parent=names, child=names, turn=st.integers(0, 3))
    def fork(self, parent: str, child: str, turn: int) -> None:
        def fork() -> None:
            self._records.fork(AgentId(parent), AgentId(child), from_turn=turn, correlation_id="c")

        life = self.lives.get(parent)
        if life is None:
            with pytest.raises(AgentNotFound):
                fork()
        elif turn > life.turns:
            with pytest.raises(InvalidRequest):
                fork()
        elif child in self.lives:
            with pytest.raises(AgentExists):
                fork()
        else:
            fork()
            self.lives[child] = Life(said=life.said[: 2 * turn])

    @rule(name=names)
    def delete(self, name: str) -> None:
        life = self.lives.pop(name, None)
        if life is None:
            with pytest.raises(AgentNotFound):
                self._records.delete(AgentId(name), correlation_id="c")
            return
        self._records.delete(AgentId(name), correlation_id="c")
        if life.open_job is not None:
            self._cancel(life.open_job)

    @rule(name=names)
    def save_context(self, name: str) -> None:
        stream = StreamName(f"agent-{name}")
        event = AgentCacheSaved(job=JobId("j"), fingerprint="f", blocks=(), tail="t", tokens=1)
        draft = Draft(event_id=self.api.app.ids.event_id(), event=event, correlation_id="c")
        self.api.log.append(stream, [draft], expected_version=len(self.api.log.load(stream)))

    @invariant()
    def the_log_agrees(self) -> None:
        listed = {
            agent.id for agent in self.api.log.agents.page(limit=1000, is_registered=True).agents
        }
        assert listed == set(self.lives)
        for name, life in self.lives.items():
            agent = self._records.load(AgentId(name))
            status = self._records.last_status(agent)
            assert agent.counted(status) == life.turns

    def _cancel(self, job_id: JobId) -> None:
        self.api.app.cancellation.cancel(job_id, reason="api")


TestAgentMachine = AgentMachine.TestCase
TestAgentMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
