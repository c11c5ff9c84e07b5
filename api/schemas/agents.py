"""The bodies and answers of ``/v1/agents``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.schemas.base import (
    MaxTokens,
    MinP,
    Name,
    RequestBody,
    Seed,
    StopText,
    StopTexts,
    TopK,
    TopP,
    WebhookBody,
    whole,
)
from api.schemas.jobs import ONE_OF_BOTH, WithinS
from api.schemas.openai_chat import ChatMessage, FunctionTool
from api.schemas.replies import JobCache

#: What may name an agent here; without ``/``, for it is a part of a path.
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"
#: Highest number of a turn that can be asked for.
TURN_MAX = 1_000_000
NewAgentId = Annotated[str, Field(pattern=AGENT_ID_PATTERN)]
TurnNumber = Annotated[int, Field(ge=0, le=TURN_MAX), BeforeValidator(whole)]


class OptionsBody(RequestBody):
    """How an agent answers."""

    model: Name | None = None
    max_tokens: MaxTokens | None = None
    stop: StopText | StopTexts | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    thinking: bool | None = None


class AgentBody(OptionsBody):
    """The body of ``POST /v1/agents``; the options hold for every turn that says nothing else."""

    id: NewAgentId | None = None
    system: str | None = None
    tools: list[FunctionTool] | None = None


class TurnBody(OptionsBody):
    """The body of ``POST /v1/agents/{agent_id}/generate``: a ``prompt`` or ``messages``."""

    model_config = ConfigDict(json_schema_extra=ONE_OF_BOTH)

    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    expected_turn: TurnNumber | None = None
    stream: bool | None = None
    seed: Seed | None = None
    priority: Literal["interactive", "batch"] | None = None
    start_within_s: WithinS | None = None
    finish_within_s: WithinS | None = None
    webhook: WebhookBody | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            code = "prompt_or_messages"
            msg = "give either prompt or messages"
            raise PydanticCustomError(code, msg)
        return self


class ForkBody(RequestBody):
    """The body of ``POST /v1/agents/{agent_id}/fork``; without a turn, after the latest one."""

    from_turn: TurnNumber | None = None
    id: NewAgentId | None = None


class AgentTurn(TypedDict):
    """A turn of an agent's own; ``counts`` says whether it has an answer."""

    turn: int
    job: str
    status: str
    counts: bool


class AgentFork(TypedDict):
    """Where an agent comes from."""

    agent_id: str
    turn: int


class AgentLinks(TypedDict):
    """Where to go from here."""

    self: str
    generate: str
    cache: str
    fork: str


class AgentObject(TypedDict):
    """An agent; what is not required stands only where one agent is asked for.

    ``turns`` counts those that have an answer, the inherited ones included; ``history`` has the
    latest of its own.
    """

    id: str
    object: Literal["agent"]
    created_at: str
    forked_from: AgentFork | None
    links: AgentLinks
    turns: NotRequired[int]
    open_job: NotRequired[str | None]
    system: NotRequired[str | None]
    tools: NotRequired[list[dict[str, Any]] | None]
    options: NotRequired[dict[str, Any] | None]
    history: NotRequired[list[AgentTurn]]


class AgentList(TypedDict):
    """A page, those made last first; ``before=<next_before>`` gives the next one."""

    object: Literal["list"]
    data: list[AgentObject]
    has_more: bool
    next_before: str | None


class DeletedAgent(TypedDict):
    """What became of it."""

    id: str
    object: Literal["agent"]
    deleted: bool


class SavedContext(TypedDict):
    """The context that was saved last; eviction is told by worker, so some may be gone."""

    job: str
    at: str
    tokens: int
    blocks: int
    tier: Literal["disk"]
    fingerprint: str


class CacheHit(TypedDict):
    """The latest job that began from what was known."""

    job: str
    at: str
    source: str
    tokens: int
    disk_tokens: int
    prompt_tokens: int
    took_ms: float


class CacheMiss(TypedDict):
    """The latest job that computed what had been saved."""

    job: str
    at: str
    reason: str
    at_token: int
    missed_tokens: int


class LatestTurn(JobCache):
    """What the latest job found, and why it did not find more."""

    job: str


class AgentCache(TypedDict):
    """What is known of an agent's context."""

    object: Literal["agent.cache"]
    agent_id: str
    context: SavedContext | None
    last_hit: CacheHit | None
    last_miss: CacheMiss | None
    latest: LatestTurn | None
