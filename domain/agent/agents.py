"""Registers, loads, forks and deletes agents with a history of their own, and adds turns to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from domain.agent.state import Agent, Profile, evolve, next_turn, require_turn
from domain.chat.generation import EmittedCall
from domain.chat.request import ChatRequest, Message, ToolCall
from domain.chat.stored_answer import StoredAnswer
from domain.errors import AgentExists, AgentNotFound, PayloadMissing
from domain.events.agent import (
    AGENT_HISTORY,
    AgentChanged,
    AgentDeleted,
    AgentEvent,
    AgentForked,
    AgentRegistered,
    AgentTurnAdded,
)
from domain.job.listing import JobViews
from domain.job.state import Job
from domain.log.folded_stream import FoldedStream
from domain.log.ports import EventLog, PayloadStore
from domain.log.record import AGENT_STREAM, RecordedEvent
from domain.ports import IdSource
from domain.values import AgentId, Digest, JobId, JobStatus, Owner, StreamName, digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """A turn that can be added to the loaded state.

    Attributes:
        before: The conversation up to this turn, the system prompt included.
    """

    agent: Agent
    turn: int
    profile: Profile
    before: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecords:
    """Registers, loads, forks and deletes agents, and adds turns; one per process.

    Attributes:
        payloads: Profiles, and the requests and answers of the jobs.
    """

    log: EventLog
    views: JobViews
    payloads: PayloadStore
    ids: IdSource

    def load(self, agent_id: AgentId) -> Agent:
        """Fold an agent from the log.

        Raises:
            AgentNotFound: It was never created, or was deleted.
        """
        return _existing(self._stream(agent_id).read())

    def register(
        self,
        agent_id: AgentId,
        profile: Profile,
        *,
        correlation_id: str,
        owner: Owner | None = None,
    ) -> tuple[Agent, bool]:
        """Create an agent; one with the same profile is returned as it is.

        Returns:
            The agent, and whether it is new.

        Raises:
            AgentExists: Another agent has the name.
            LogUnavailable: Nothing was recorded.
        """
        payload = profile.to_bytes()
        event = AgentRegistered(agent=agent_id, profile=digest_of(payload), owner=owner)

        def events_on(agent: Agent) -> Sequence[AgentEvent]:
            if not agent.exists:
                return (event,)
            if agent.profile != event.profile or agent.parent is not None:
                raise AgentExists(agent_id)
            return ()

        stream = self._stream(agent_id)
        payloads = {event.profile: payload}
        is_new = stream.commit(events_on, correlation_id=correlation_id, payloads=payloads)
        return stream.read(), is_new

    def change(
        self, agent_id: AgentId, change: Callable[[Agent, Profile], Profile], *, correlation_id: str
    ) -> Agent:
        """Replace the profile of an agent by what ``change`` makes of it; its turns stay.

        Raises:
            AgentNotFound: There is no such agent.
            LogUnavailable: Nothing was recorded.
            PayloadMissing: The profile was erased.
        """
        payloads: dict[Digest, bytes] = {}

        def events_on(agent: Agent) -> Sequence[AgentEvent]:
            payload = change(_existing(agent), self.profile_of(agent)).to_bytes()
            digest = digest_of(payload)
            payloads[digest] = payload
            return (
                () if digest == agent.profile else (AgentChanged(agent=agent_id, profile=digest),)
            )

        stream = self._stream(agent_id)
        stream.commit(events_on, correlation_id=correlation_id, payloads=payloads)
        return stream.read()

    def profile_of(self, agent: Agent) -> Profile:
        """Return the profile of an agent.

        Raises:
            PayloadMissing: It was erased.
        """
        return Profile.from_bytes(self.payloads.get(agent.profile))

    def last_status(self, agent: Agent) -> JobStatus | None:
        """Return the status of the job of an agent's latest own turn, if it has one."""
        if agent.last is None:
            return None
        view = self.views.get(agent.last)
        # The view is missing only if the job was archived; its answer is then unknown.
        return JobStatus.EXPIRED if view is None else view.status

    def plan_turn(
        self, agent_id: AgentId, *, expected: int | None, key: Digest | None
    ) -> PlannedTurn:
        """Return the next turn of an agent, or the turn that a repeated request already added.

        Args:
            expected: Number of turns that the caller expects; ``None`` for any.
            key: Digest of the idempotency key; a turn whose job has it is returned again.

        Raises:
            AgentNotFound: There is no such agent.
            AgentTurnConflict: It has another number of turns, or one is open.
            PayloadMissing: The texts of the turns before were erased.
        """
        agent = self.load(agent_id)
        earlier = self.views.keyed(key) if key is not None else None
        turn = agent.number_of(earlier.id) if earlier is not None else None
        if turn is None:
            turn = next_turn(agent, self.last_status(agent), expected)
        profile = self.profile_of(agent)
        job = agent.job_before(turn)
        before = self.conversation_until(job) if job is not None else ()
        return PlannedTurn(agent=agent, turn=turn, profile=profile, before=before)

    def record_turn(self, planned: PlannedTurn, job_id: JobId, *, correlation_id: str) -> None:
        """Record a job as the planned turn; does nothing if it is recorded already.

        Raises:
            AgentNotFound: The agent was deleted meanwhile.
            AgentTurnConflict: A concurrent request added a turn first.
            LogUnavailable: Nothing was recorded.
        """
        agent_id = planned.agent.id

        def events_on(agent: Agent) -> Sequence[AgentEvent]:
            if agent.number_of(job_id) is not None:
                return ()
            if agent.life != planned.agent.life:
                raise AgentNotFound(agent_id)
            turn = next_turn(agent, self.last_status(agent), planned.turn - 1)
            return (AgentTurnAdded(agent=agent_id, turn=turn, job=job_id),)

        # Events of saved contexts share the stream; only turns are a conflict.
        self._stream(agent_id).commit(events_on, correlation_id=correlation_id)

    def fork(
        self,
        parent_id: AgentId,
        child_id: AgentId,
        *,
        from_turn: int | None,
        correlation_id: str,
        owner: Owner | None = None,
    ) -> Agent:
        """Create an agent that continues another one after one of its turns.

        Args:
            from_turn: Last turn to take over, 0 for none; ``None`` for the latest with an answer.

        Raises:
            AgentNotFound: There is no such parent.
            AgentExists: The name is taken.
            InvalidRequest: The parent has no such turn with an answer.
            LogUnavailable: Nothing was recorded.
        """
        parent = self.load(parent_id)
        last = self.last_status(parent)
        turn = parent.counted(last) if from_turn is None else from_turn
        require_turn(parent, last, turn)
        job = self._job_of_turn(parent, turn)
        view = self.views.get(job) if job is not None else None
        event = AgentForked(
            agent=child_id,
            parent=parent_id,
            parent_life=parent.life,
            turn=turn,
            profile=parent.profile,
            job=job,
            request=Digest(view.submitted.request) if view is not None else None,
            output=Digest(view.output) if view is not None and view.output else None,
            owner=owner,
        )

        def events_on(child: Agent) -> Sequence[AgentEvent]:
            if child.exists:
                raise AgentExists(child_id)
            return (event,)

        stream = self._stream(child_id)
        stream.commit(events_on, correlation_id=correlation_id)
        return stream.read()

    def delete(self, agent_id: AgentId, *, correlation_id: str) -> Agent:
        """Delete an agent; its jobs stay in the log.

        Returns:
            The agent before its deletion.

        Raises:
            AgentNotFound: There is no such agent.
            LogUnavailable: Nothing was recorded.
        """
        ended: list[Agent] = []

        def events_on(agent: Agent) -> Sequence[AgentEvent]:
            ended[:] = [_existing(agent)]
            return (AgentDeleted(agent=agent_id),)

        self._stream(agent_id).commit(events_on, correlation_id=correlation_id)
        return ended[0]

    def conversation_until(self, job_id: JobId) -> tuple[Message, ...]:
        """Return a conversation up to the answer of a job, that answer included.

        Raises:
            PayloadMissing: The texts were erased.
        """
        view = self.views.get(job_id)
        if view is None or view.output is None:
            raise PayloadMissing(job_id)
        answer = StoredAnswer.from_bytes(self.payloads.get(Digest(view.output)))
        turn = Message(
            role="assistant",
            content=answer.text,
            reasoning=answer.thinking,
            tool_calls=tuple(_call(call) for call in answer.calls),
            origin=job_id,
        )
        return (*self._asked(view), turn)

    def conversation(self, agent: Agent) -> tuple[Message, ...]:
        """Return a whole conversation; the answer of its last turn may be partial or missing.

        Raises:
            PayloadMissing: The texts were erased.
        """
        job = agent.last or agent.base
        view = None if job is None else self.views.get(job)
        if view is None or view.output is not None:
            return () if job is None else self.conversation_until(job)
        return self._asked(view)

    def _asked(self, view: Job) -> tuple[Message, ...]:
        return ChatRequest.from_bytes(self.payloads.get(Digest(view.submitted.request))).messages

    def _job_of_turn(self, agent: Agent, turn: int) -> JobId | None:
        """Return the job of a turn, which may be inherited over several forks."""
        while 0 < turn < agent.inherited:
            assert agent.parent is not None, "only a fork inherits"
            agent = self._load_life(agent.parent, agent.parent_life)
        if turn <= agent.inherited:
            return agent.base if turn else None
        return agent.turns[turn - agent.inherited - 1]

    def _load_life(self, agent_id: AgentId, life: int) -> Agent:
        """Fold one life of an agent, up to its deletion."""
        agent = Agent(id=agent_id)
        for recorded in self.log.load(StreamName(AGENT_STREAM + agent_id)):
            after = _evolved(agent, recorded)
            if agent.life == life != after.life:
                break
            agent = after
        return agent

    def _stream(self, agent_id: AgentId) -> FoldedStream[Agent]:
        return FoldedStream(
            StreamName(AGENT_STREAM + agent_id),
            log=self.log,
            ids=self.ids,
            initial=Agent(id=agent_id),
            evolve=_evolved,
        )


def _existing(agent: Agent) -> Agent:
    if not agent.exists:
        raise AgentNotFound(agent.id)
    return agent


def _call(emitted: EmittedCall) -> ToolCall:
    arguments: dict[str, Any] = {"unparsed": emitted.arguments}
    with suppress(ValueError):
        parsed = json.loads(emitted.arguments or "{}")
        if isinstance(parsed, dict):
            arguments = parsed
    return ToolCall(id=emitted.id, name=emitted.name, arguments=arguments)


def _evolved(agent: Agent, recorded: RecordedEvent) -> Agent:
    if recorded.type not in AGENT_HISTORY:  # of a context, which no decision reads
        return replace(agent, version=recorded.version)
    return evolve(agent, recorded)
