"""The body of ``POST /v1/jobs``, and the fields that it shares with turns of agents."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from api.schemas.base import (
    NAME_PATTERN,
    Items,
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
)
from api.schemas.openai_chat import ChatMessage, FunctionTool

#: Longest deadline: thirty days.
WITHIN_MAX_S = 30 * 24 * 3600
WithinS = Annotated[float, Field(gt=0, le=WITHIN_MAX_S)]

_ONE_OF_BOTH: JsonDict = {
    "oneOf": [
        {
            "required": ["prompt"],
            "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
        },
        {
            "required": ["messages"],
            "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}},
        },
    ]
}


class OptionsBody(RequestBody):
    """Options of a generation."""

    model: Name | None = None
    max_tokens: MaxTokens | None = None
    stop: StopText | StopTexts | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    thinking: bool | None = None


class PromptBody(OptionsBody):
    """A generation to enqueue: either a ``prompt`` or ``messages``."""

    model_config = ConfigDict(json_schema_extra=_ONE_OF_BOTH)

    prompt: str | None = None
    messages: Annotated[Items[ChatMessage], Field(min_length=1)] | None = None
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


class JobBody(PromptBody):
    """The body of ``POST /v1/jobs``: a generation from either a ``prompt`` or ``messages``."""

    system: str | None = None
    tools: Items[FunctionTool] | None = None
    agent_id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
