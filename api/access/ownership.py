"""Which things of the log a key may use: jobs, schedules, agents; a foreign one does not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from api.http.bodies import SESSION_MARK
from api.http.messages import Caller
from domain.batch.state import BATCH_PREFIX
from domain.errors import (
    AgentExists,
    AgentNotFound,
    BatchNotFound,
    CompletionNotFound,
    ConversationNotFound,
    FileNotFound,
    InvalidRequest,
    JobNotFound,
    NotFound,
    ResponseNotFound,
    ScheduleNotFound,
    WebhookNotFound,
)
from domain.kv.owned_tokens import sharing_blocks
from domain.log.ports import Owners
from domain.log.record import AGENT_STREAM
from domain.values import AgentId, Owner, Predecessor, StreamName, digest_of
from domain.webhook.delivery import WebhookId, WebhookStore
from ops.settings.api_keys import KeyScope

#: Characters of the name of an agent, as ``KNOWN_NAME_PATTERN`` bounds them.
_AGENT_CHARS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class _NamedThing:
    """A thing that a path names.

    Attributes:
        missing: The error where there is none.
        prefixes: Beginnings of its names that its stream does not have.
        stream: What its stream begins with instead.
    """

    missing: Callable[[str], NotFound]
    prefixes: tuple[str, ...] = ("",)
    stream: str = ""

    def stream_of(self, name: str) -> str:
        """Return the stream of a name; one with another beginning has none."""
        known = next((one for one in self.prefixes if name.startswith(one)), None)
        return name if known is None else self.stream + name.removeprefix(known)


#: The things that have owners, by the part of the path that names them.
_THINGS: Final[Mapping[str, _NamedThing]] = MappingProxyType(
    {
        "job_id": _NamedThing(JobNotFound),
        "response_id": _NamedThing(ResponseNotFound, ("resp_", ""), "job-"),
        "agent_id": _NamedThing(AgentNotFound, stream=AGENT_STREAM),
        "completion_id": _NamedThing(CompletionNotFound, ("chatcmpl-", ""), "job-"),
        "conversation_id": _NamedThing(ConversationNotFound, stream=AGENT_STREAM),
        "file_id": _NamedThing(FileNotFound),
        "batch_id": _NamedThing(BatchNotFound, ("msgbatch_", "batch_"), BATCH_PREFIX),
        "schedule_id": _NamedThing(ScheduleNotFound),
    }
)
#: A webhook is a row of a table of its own.
WEBHOOK_PARAM: Final = "webhook_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose job a request makes.

    Attributes:
        owner: The key that the job belongs to: that of its agent, which a key of the scope
            ``admin`` may use too.
        cache_owner: As in ``JobSubmitted``.
        keyspace: As in ``NewJob``.
    """

    agent: AgentId | None
    owner: Owner | None
    cache_owner: Owner | None
    keyspace: str

    @property
    def answers_to(self) -> Owner | None:
        """As in ``NewJob``."""
        return self.owner if self.keyspace else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipCheck:
    """Decides whether a caller may use a thing; every method may block.

    Attributes:
        shares_blocks: Whether prompts of different keys share cached blocks.
    """

    owners: Owners
    webhooks: WebhookStore
    shares_blocks: bool = False

    def require_named(self, caller: Caller, params: Mapping[str, str]) -> None:
        """Refuse a path that names a thing of another key, as if there were none.

        Raises:
            NotFound: A thing of the path is not the caller's, or does not exist.
        """
        if caller.sees is None:
            return
        for param, name in params.items():
            thing = _THINGS.get(param)
            if thing is not None:
                self.require(caller, thing.stream_of(name), thing.missing(name))
            elif param == WEBHOOK_PARAM:
                found = self.webhooks.get(WebhookId(name))
                if found is None or found.owner != caller.sees:
                    raise WebhookNotFound(name)

    def require(self, caller: Caller, stream: str, missing: Exception) -> None:
        """Raise ``missing`` if a stream is not the caller's, or does not exist."""
        if caller.sees is None:
            return
        found = self.owners.ownership_of(StreamName(stream))
        if found is None or found.owner != caller.sees:
            raise missing

    def require_earlier(self, caller: Caller, after: Sequence[Predecessor]) -> None:
        """Refuse to wait for jobs that do not exist or are not the caller's.

        A job can only wait for earlier ones, so none waits for itself.

        Raises:
            InvalidRequest: Naming the first such job.
        """
        for one in after:
            found = self.owners.ownership_of(StreamName(one.job))
            if found is None or caller.sees not in {None, found.owner}:
                raise InvalidRequest(f"there is no job {one.job}", field=f"after.{one.name}")

    def claim_agent(self, caller: Caller, agent: AgentId) -> Owner | None:
        """Return the owner of an agent; an agent that does not exist becomes the caller's.

        Raises:
            AgentExists: It belongs to another key.
        """
        if caller.is_alone:
            return caller.owner
        found = self.owners.ownership_of(StreamName(AGENT_STREAM + agent))
        if found is None:
            return caller.owner
        if found.owner != caller.owner and caller.scope is not KeyScope.ADMIN:
            raise AgentExists(agent)
        return found.owner

    def owner_of_fork(self, caller: Caller, parent: AgentId, child: AgentId) -> Owner | None:
        """Return the owner of a fork: that of the forked agent.

        Raises:
            AgentExists: The child's name belongs to an agent of another key.
        """
        self.claim_agent(caller, child)
        return self.claim_agent(caller, parent)

    def identify(self, caller: Caller, agent: AgentId | None, *, is_named: bool) -> Identity:
        """Return whose job a request makes.

        Args:
            is_named: Whether the client gave the agent its name; else it is that of a session.

        Raises:
            AgentExists: The agent belongs to another key.
        """
        if caller.is_alone:
            return Identity(agent=agent, owner=caller.owner, cache_owner=None, keyspace="")
        owner = caller.owner
        if agent is not None:
            agent = agent if is_named else session_agent(caller, agent)
            owner = self.claim_agent(caller, agent)
        return Identity(
            agent=agent,
            owner=owner,
            cache_owner=sharing_blocks(owner) if self.shares_blocks else owner,
            keyspace=caller.keyspace,
        )

    def cache_owner_of(self, caller: Caller) -> Owner | None:
        """Return the ``cache_owner`` of jobs without an agent."""
        return self.identify(caller, None, is_named=True).cache_owner


def session_agent(caller: Caller, agent: AgentId) -> AgentId:
    """Return the agent of a session of a key; a session that becomes too long is digested.

    No client can write the mark in it: an agent that one key names is never the session of another.
    """
    whose = SESSION_MARK + caller.name
    is_short = len(agent) + len(whose) <= _AGENT_CHARS_MAX
    # Marked again: a session of the same key may have the digits of the digest as its name.
    return AgentId(agent + whose if is_short else digest_of(agent.encode()) + SESSION_MARK + whose)
