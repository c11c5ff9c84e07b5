"""Agents with a history of their own, whose turns a test answers."""

from __future__ import annotations

from dataclasses import replace

from domain.agent.agents import AgentRecords, PlannedTurn
from domain.agent.state import Agent, Profile
from domain.chat.request import ChatRequest, Message
from domain.chat.stored_answer import StoredAnswer
from domain.events.agent import AgentEvent
from domain.log.codec import decode_recorded
from domain.log.record import AGENT_STREAM
from domain.values import AgentId, JobId, SamplingWish, StreamName, digest_of
from tests.support.builders.job_events import completed, started, submitted
from tests.support.builders.told_log import ToldLog
from tests.support.fakes.time import SequentialIds


class AgentWorld:
    """``register``, then ``plan`` and ``record``; ``say`` adds a whole turn."""

    def __init__(self) -> None:
        self.log = ToldLog()
        self.records = AgentRecords(
            log=self.log,
            views=self.log.views,
            payloads=self.log,
            ids=SequentialIds(),
        )

    def register(self, name: str, profile: Profile | None = None) -> Agent:
        agent, _ = self.records.register(
            AgentId(name), profile or Profile(), correlation_id=f"create-{name}"
        )
        return agent

    def plan(
        self, name: str, *, expected: int | None = None, key: str | None = None
    ) -> PlannedTurn:
        digest = None if key is None else digest_of(key.encode())
        return self.records.plan_turn(AgentId(name), expected=expected, key=digest)

    def accept(
        self, job: str, planned: PlannedTurn, question: str, key: str | None = None
    ) -> JobId:
        """Submit the job of a planned turn."""
        request = ChatRequest(
            model="m",
            messages=(*planned.before, Message(role="user", content=question)),
            max_tokens=16,
            sampling=SamplingWish(seed=7),
        ).to_bytes()
        event = replace(submitted(agent=planned.agent.id, key=key), request=digest_of(request))
        self.log.tell(job, event, payloads={event.request: request})
        return JobId(job)

    def record(self, planned: PlannedTurn, job: str) -> None:
        self.records.record_turn(planned, JobId(job), correlation_id="turn")

    def answer(self, job: str, answer: StoredAnswer) -> None:
        """Complete a job."""
        output = answer.to_bytes()
        end = replace(completed(), output=digest_of(output))
        self.log.tell(job, started(), end, payloads={end.output: output})

    def ask(self, name: str, job: str, question: str = "?", *, key: str | None = None) -> JobId:
        """Add a turn, which stays open."""
        planned = self.plan(name)
        accepted = self.accept(job, planned, question, key)
        self.record(planned, job)
        return accepted

    def say(self, name: str, job: str, question: str = "?", answer: str = "!") -> JobId:
        """Add a turn and its answer."""
        asked = self.ask(name, job, question)
        self.answer(job, StoredAnswer(text=answer))
        return asked

    def fork(self, parent: str, child: str, *, from_turn: int | None = None) -> Agent:
        return self.records.fork(
            AgentId(parent), AgentId(child), from_turn=from_turn, correlation_id="fork"
        )

    def delete(self, name: str) -> Agent:
        return self.records.delete(AgentId(name), correlation_id="delete")

    def events(self, name: str) -> list[AgentEvent]:
        """Return the events of an agent."""
        recorded = self.log.load(StreamName(AGENT_STREAM + name))
        return [event for one in recorded if isinstance(event := decode_recorded(one), AgentEvent)]
