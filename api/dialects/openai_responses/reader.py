"""Reads recorded agents and responses, and the conversations that they continue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.access.ownership import OwnershipCheck
from api.answer import AssembledAnswer, job_hex, unix_seconds
from api.dialects.agents.objects import ShownTurn, agent_cache_object, full_agent_object
from api.dialects.jobs.bodies import AgentCache, AgentObject
from api.dialects.openai_responses.bodies import RESPONSE_ID_PATTERN, ResponseObject, ResponsesBody
from api.dialects.openai_responses.items import Item, listed_items
from api.dialects.openai_responses.parse import decode_fields, input_items, requested_fields
from api.dialects.openai_responses.response_object import (
    PROTOCOL,
    RequestedFields,
    ResponseEnvelope,
    ended_response,
    find_item,
    response_object,
    unfinished_status,
)
from api.http.messages import Caller
from domain.agent.state import Agent
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    AgentNotFound,
    InvalidRequest,
    JobNotFound,
    PayloadMissing,
    PreviousResponseNotFound,
    ResponseNotFound,
)
from domain.job.state import Job
from domain.log.record import AGENT_STREAM
from domain.usecases.agents import AgentRecords
from domain.usecases.jobs.commit import load_job
from domain.usecases.recorded_answers import JobRecords
from domain.values import AgentId, JobId, JobStatus, StreamName


def current_response(
    envelope: ResponseEnvelope, view: Job | None, stored: StoredAnswer | None
) -> ResponseObject:
    """Return a response as it is now.

    Args:
        envelope: Its request.
        view: Its job; ``None`` where the projection does not have it yet.
        stored: The answer of the job, if it has one.
    """
    if view is None or not view.status.is_terminal:
        status = JobStatus.QUEUED if view is None else view.status
        return response_object(envelope, unfinished_status(envelope, status))
    answer = AssembledAnswer() if stored is None else AssembledAnswer.from_stored(view, stored)
    answer.ending = view.ending
    return ended_response(envelope, answer)


#: Responses of one conversation; each is read from the log at every turn.
CHAIN_MAX: Final = 1000

_RESPONSE_ID: Final = re.compile(RESPONSE_ID_PATTERN)
_ITEM_ID: Final = re.compile(r"(?:msg|rs|fc|ctc|tsc)_([0-9a-f]{32})_\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response in the log.

    Attributes:
        envelope: Its request.
        job: The state of its job.
    """

    envelope: ResponseEnvelope
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReader:
    """Reads responses; every method blocks and raises ``LogUnavailable`` if the log is.

    Attributes:
        ownership: Which responses a request may refer to.
    """

    records: JobRecords
    ownership: OwnershipCheck

    def load_envelope(self, job_id: JobId) -> ResponseEnvelope:
        """Return the request of a job that was accepted on this connection.

        The client may have asked not to store the response.

        Raises:
            ResponseNotFound: The job does not exist, or is not of this dialect.
        """
        return self._load(job_id).envelope

    def load(self, response_id: str) -> StoredResponse:
        """Return a response that a client may look up.

        Raises:
            ResponseNotFound: It does not exist, was deleted, or was not to be stored.
        """
        if not _RESPONSE_ID.match(response_id):
            raise ResponseNotFound(response_id)
        found = self._load(JobId("job-" + response_id.removeprefix("resp_")))
        if found.job.hidden or not found.envelope.requested.is_stored:
            raise ResponseNotFound(response_id)
        return found

    def present(self, found: StoredResponse) -> ResponseObject:
        """Return a response as it is now."""
        view = self.records.views.get(found.envelope.job_id)
        stored = None if view is None else self.records.read_stored(view)
        return current_response(found.envelope, view, stored)

    def load_object(self, response_id: str) -> ResponseObject:
        """Return a response as it is now by its id; raises as ``load`` does."""
        return self.present(self.load(response_id))

    def resolve(self, wire: ResponsesBody, caller: Caller) -> tuple[RequestedFields, list[Item]]:
        """Return a request without references, and the items of the conversation before it.

        Raises:
            InvalidRequest: An item is not valid, or the target of a reference does not exist; or
                the conversation has too many responses, or one of them has not ended.
            PreviousResponseNotFound: A response of the conversation does not exist.
        """
        items = [
            self._resolve_item(item, index, caller) for index, item in enumerate(input_items(wire))
        ]
        before = self._conversation(wire.previous_response_id, caller)
        return requested_fields(wire, items, before), before

    def input_items(self, response_id: str, caller: Caller) -> list[dict[str, Any]]:
        """Return the input items of a response, with those of the conversation before it.

        Raises:
            InvalidRequest: As ``resolve`` does for the conversation.
            PreviousResponseNotFound: As ``resolve`` does.
            ResponseNotFound: As ``load`` does.
        """
        found = self.load(response_id)
        requested = found.envelope.requested
        before = self._conversation(requested.previous, caller)
        return listed_items((*before, *requested.items), job_hex(found.envelope.job_id))

    def _conversation(self, last: str | None, caller: Caller) -> list[Item]:
        """Return the items of a response and of those that it continues, oldest first."""
        parts: list[Sequence[Item]] = []
        previous = last
        while previous is not None:
            if len(parts) >= CHAIN_MAX:
                msg = f"the conversation has more than {CHAIN_MAX} responses"
                raise InvalidRequest(msg, field="previous_response_id")
            try:
                found = self._load_visible(previous, caller)
            except ResponseNotFound:
                raise PreviousResponseNotFound(previous) from None
            parts.append((*found.envelope.requested.items, *self._output(found)))
            previous = found.envelope.requested.previous
        return [item for part in reversed(parts) for item in part]

    def _output(self, found: StoredResponse) -> Sequence[Item]:
        if not found.job.status.is_terminal:
            msg = f"response {found.envelope.id} has not ended"
            raise InvalidRequest(msg, field="previous_response_id")
        return self.present(found)["output"]

    def _resolve_item(self, item: Item, index: int, caller: Caller) -> dict[str, Any]:
        """Return an item, or the target of a reference."""
        if item["type"] != "item_reference":
            return dict(item)
        named = _ITEM_ID.fullmatch(item["id"])
        try:
            found = self._load_visible(f"resp_{named[1]}", caller) if named else None
        except ResponseNotFound:
            found = None
        target = find_item(self._output(found), item["id"]) if found is not None else None
        if target is None:
            msg = f"item {item['id']} does not exist"
            raise InvalidRequest(msg, field=f"input.{index}.id")
        return dict(target)

    def _load_visible(self, response_id: str, caller: Caller) -> StoredResponse:
        """Return a response that the caller may refer to; raises as ``load`` does."""
        found = self.load(response_id)
        missing = ResponseNotFound(response_id)
        self.ownership.require(caller, found.envelope.job_id, missing)
        return found

    def _load(self, job_id: JobId) -> StoredResponse:
        response_id = f"resp_{job_id.removeprefix('job-')}"
        try:
            loaded = load_job(job_id, log=self.records.log)
            submitted = loaded.job.submitted
            if submitted is None or submitted.protocol != PROTOCOL or submitted.wire is None:
                raise ResponseNotFound(response_id)
            requested = decode_fields(self.records.payloads.get(submitted.wire))
        except (JobNotFound, PayloadMissing):
            raise ResponseNotFound(response_id) from None
        envelope = ResponseEnvelope(
            job_id=job_id, created_s=unix_seconds(loaded.job.created_at), requested=requested
        )
        return StoredResponse(envelope=envelope, job=loaded.job)


#: Turns of the history of an agent.
HISTORY_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReader:
    """Reads agents; every method blocks."""

    agents: AgentRecords
    records: JobRecords

    def present(self, agent: Agent) -> AgentObject:
        """Return an agent with its profile and its latest turns."""
        try:
            profile = self.agents.profile_of(agent)
        except PayloadMissing:
            profile = None
        return full_agent_object(
            agent,
            self.agents.last_status(agent),
            profile=profile,
            history=self._history(agent),
        )

    def load_cache(self, agent_id: AgentId) -> AgentCache:
        """Return the cache state of the context of an agent, registered or not.

        Raises:
            AgentNotFound: The agent has neither events nor jobs, or was deleted.
        """
        recorded = self.records.log.load(StreamName(AGENT_STREAM + agent_id))
        jobs = self.records.views.page(limit=1, agent=agent_id).jobs
        latest = jobs[0].id if jobs else None
        diagnosis = None if latest is None else self.records.diagnose(latest)
        shown = agent_cache_object(agent_id, recorded, latest, diagnosis)
        if shown is None or not (recorded or jobs):
            raise AgentNotFound(agent_id)
        return shown

    def is_registered(self, agent_id: AgentId) -> bool:
        """Return whether an agent was created here; others only have events or jobs.

        Raises:
            AgentNotFound: It has neither.
        """
        stream = StreamName(AGENT_STREAM + agent_id)
        events = self.records.log.read_all(limit=1, stream=stream)
        if not events and not self.records.views.page(limit=1, agent=agent_id).jobs:
            raise AgentNotFound(agent_id)
        try:
            self.agents.load(agent_id)
        except AgentNotFound:
            return False
        return True

    def _history(self, agent: Agent) -> list[ShownTurn]:
        own = list(enumerate(agent.turns, start=agent.inherited + 1))
        turns: list[ShownTurn] = []
        for number, job in own[-HISTORY_MAX:]:
            view = self.records.views.get(job)
            turns.append((number, job, JobStatus.EXPIRED if view is None else view.status))
        return turns
