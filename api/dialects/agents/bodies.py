"""Bodies and replies of ``/v1/agents``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.jobs.bodies import JobCache, OptionsBody, PromptBody
from api.dialects.openai_chat.bodies import FunctionTool
from api.http.bodies import (
    Items,
    NativeBody,
    Pairs,
    Unsupported,
    whole,
)

#: Id of a new agent; without ``/``, since it is a part of a path.
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"
#: Id of an agent in a path: also that of the session of a client.
KNOWN_AGENT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@~-]{0,127}$"
#: Highest number of a turn in a request.
TURN_MAX = 1_000_000
NewAgentId = Annotated[str, Field(pattern=AGENT_ID_PATTERN)]
TurnNumber = Annotated[int, Field(ge=0, le=TURN_MAX), BeforeValidator(whole)]


class AgentBody(OptionsBody):
    """The body of ``POST /v1/agents``; the options are the defaults of its turns."""

    id: NewAgentId | None = None
    system: str | None = None
    tools: Items[FunctionTool] | None = None
    metadata: Pairs | None = None


class AgentChangeBody(OptionsBody):
    """The body of ``PATCH /v1/agents/{agent_id}``: only the fields that it has change.

    ``null`` returns an option to the default of the service, and takes all ``metadata`` away.
    """

    metadata: Pairs | None = None
    system: Unsupported = None
    tools: Unsupported = None


class TurnBody(PromptBody):
    """The body of ``POST /v1/agents/{agent_id}/generate``: a ``prompt`` or ``messages``."""

    expected_turn: TurnNumber | None = None
    stream: bool | None = None


class ForkBody(NativeBody):
    """The body of ``POST /v1/agents/{agent_id}/fork``; ``from_turn`` defaults to the latest."""

    from_turn: TurnNumber | None = None
    id: NewAgentId | None = None


class AgentTurn(TypedDict):
    """A turn that was not inherited; ``counts`` is true if it has an answer."""

    turn: int
    job: str
    status: str
    counts: bool


class AgentFork(TypedDict):
    """The agent that an agent was forked from, and its last inherited turn."""

    agent_id: str
    turn: int


class AgentLinks(TypedDict):
    """Paths of the operations on an agent; one without a history has only ``cache``."""

    cache: str
    self: NotRequired[str]
    generate: NotRequired[str]
    messages: NotRequired[str]
    fork: NotRequired[str]


class AgentMessage(TypedDict):
    """A message in the form of chat completions; ``job`` is that of its turn.

    The system prompt has no job. Content with images is a list of parts.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]]
    job: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]


class AgentMisses(TypedDict):
    """Saved contexts that were computed again, by cause."""

    diverged: int
    gone: int
    model_changed: int


class AgentActivity(TypedDict):
    """What the jobs of an agent have done; tokens are those of ended jobs.

    ``known_tokens`` are prompt tokens that the cache knew when attempts began. ``context_tokens``
    is the length of the context that was saved last.
    """

    first_seen: str
    last_seen: str
    jobs: int
    open_jobs: int
    last_job: str | None
    last_model: str | None
    prompt_tokens: int
    cached_tokens: int
    known_tokens: int
    completion_tokens: int
    hits: int
    ram_tokens: int
    disk_tokens: int
    misses: AgentMisses
    missed_tokens: int
    context_tokens: int
    context_blocks: int


class AgentObject(TypedDict):
    """An agent; only lists have ``registered`` and ``activity``, and they leave out the rest.

    ``turns`` counts the turns that have an answer, with the inherited ones. ``history`` has the
    latest turns without them. ``registered`` is false for an agent without a history of its own,
    such as a session of a client; its ``created_at`` is the instant of its first job.
    """

    id: str
    object: Literal["agent"]
    created_at: str
    forked_from: AgentFork | None
    links: AgentLinks
    registered: NotRequired[bool]
    activity: NotRequired[AgentActivity]
    turns: NotRequired[int]
    open_job: NotRequired[str | None]
    system: NotRequired[str | None]
    tools: NotRequired[list[dict[str, Any]] | None]
    options: NotRequired[dict[str, Any] | None]
    metadata: NotRequired[dict[str, str] | None]
    history: NotRequired[list[AgentTurn]]


class SavedContext(TypedDict):
    """The context that was saved last; some of its blocks may have been evicted since."""

    job: str
    at: str
    tokens: int
    blocks: int
    tier: Literal["disk"]
    fingerprint: str


class CacheHit(TypedDict):
    """The latest job that reused cached blocks."""

    job: str
    at: str
    source: str
    tokens: int
    disk_tokens: int
    prompt_tokens: int
    took_ms: float


class CacheMiss(TypedDict):
    """The latest job that computed saved blocks again."""

    job: str
    at: str
    reason: str
    at_token: int
    missed_tokens: int


class LatestTurn(JobCache):
    """The cache diagnosis of the latest job."""

    job: str


class AgentCache(TypedDict):
    """The cache state of the context of an agent."""

    object: Literal["agent.cache"]
    agent_id: str
    context: SavedContext | None
    last_hit: CacheHit | None
    last_miss: CacheMiss | None
    latest: LatestTurn | None


class ContextBlock(TypedDict):
    """A block of a context; ``shared_with`` counts the other agents that have it.

    ``in_memory`` and ``on_disk`` are ``null`` while no worker with a model answers.
    """

    name: str
    tokens: int
    in_memory: bool | None
    on_disk: bool | None
    shared_with: int


class MappedContextObject(TypedDict):
    """A saved context; ``shared_with`` has at most 20 of the agents that share blocks with it."""

    job: str
    at: str
    fingerprint: str
    tokens: int
    blocks: list[ContextBlock]
    shared_with: list[str]


class AgentContextMaps(TypedDict):
    """The saved contexts of an agent, the last one first; beginnings of others are left out.

    ``registered`` is true for an agent that was created over HTTP, and so can be forked.
    """

    object: Literal["agent.blocks"]
    agent_id: str
    registered: bool
    block_tokens: int
    contexts: list[MappedContextObject]


class ForgottenCache(TypedDict):
    """The reply to the deletion of cached contexts."""

    object: Literal["agent.cache"]
    agent_id: str
    deleted: bool
    blocks: int
