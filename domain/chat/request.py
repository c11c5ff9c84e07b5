"""The canonical request, to which each wire protocol is translated and which the log stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal

from domain.chat.embedding import EmbeddingInputs
from domain.chat.generation import ThinkingLimit
from domain.chat.images import IMAGE_MARK, IMAGE_NOTE, ChatImage
from domain.values import Digest, SamplingWish, digest_of

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model made in an earlier turn; ``arguments`` is a JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn, reduced to what a chat template can render.

    Attributes:
        role: The author; ``tool`` carries the result of ``tool_call_id``.
        content: Text; parts that the model cannot read are replaced by a note before.
        reasoning: Thinking that went before the text of an assistant turn.
        tool_calls: Calls of an assistant turn.
        tool_call_id: The call that a ``tool`` message answers.
        origin: The job whose answer an assistant turn echoes, "" if unknown. It identifies the
            tokens of the turn and does not change its meaning.
        images: The images of its text, in order: each has an ``IMAGE_MARK`` in ``content``.
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    origin: str = ""
    images: tuple[ChatImage, ...] = ()


#: Origin of an assistant turn from which the client had a part taken out: the tokens of no answer
#: may stand in its place.
EDITED_ORIGIN = "edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The caller's rule for tool calls.

    Attributes:
        mode: ``auto`` leaves it to the model, ``none`` forbids, ``any`` demands a call, ``tool``
            a call of ``name``.
        parallel: Whether one answer may make several calls.
        allowed: Names of the tools that may be called; ``None`` for all. The others stay in the
            prompt, whose beginning is the same for every choice.
    """

    mode: Literal["auto", "none", "any", "tool"] = "auto"
    name: str | None = None
    parallel: bool = True
    allowed: tuple[str, ...] | None = None

    @property
    def is_single(self) -> bool:
        """Whether the answer is over after one call."""
        return not self.parallel or self.mode == "tool"

    def allows(self, name: str) -> bool:
        """Whether a tool may be called."""
        return self.mode != "none" and (self.allowed is None or name in self.allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPrompt:
    """A prompt that the model continues without a chat template: a text, or token ids.

    Attributes:
        text: The text; special tokens written in it are read as such.
        ids: The token ids, in place of a text.
        suffix: The text after the gap, if a gap is to be filled.
        is_echoed: Whether the answer begins with the prompt.
        is_begun: Whether no beginning token of the model's is put before the text.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    suffix: str | None = None
    is_echoed: bool = False
    is_begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Everything that decides what is generated.

    Attributes:
        model: The name the caller used.
        messages: At least one, or none where there is a raw prompt or an embedding.
        tools: Definitions in OpenAI's function format, rendered by the chat template.
        max_tokens: Most tokens to generate; 0 reads the prompt into the cache.
        stop: Texts that end the generation; they are not part of the answer.
        sampling: With the seed already drawn.
        thinking: Whether the template is asked to open a reasoning section.
        deferred_tools: Tools that may be called although they are not among ``tools``: a message
            describes them, since putting them there would change the beginning of the prompt.
        tool_choice: Whether a tool may, must or must not be called.
        narrowed: By name of a tool: the schema that its arguments are held to, where that is
            narrower than the one which the model is shown.
        answer_schema: JSON schema that the answer is to match; an empty one asks for any object.
        is_strict: Whether a schema that cannot be kept is an error.
        strict_tools: Names of the tools whose schema must be kept or the request refused.
        logprobs: Number of top alternatives to return per token, 0 to ``TOP_MAX``; ``None`` for
            no log-probabilities.
        effort: Reasoning effort, for a model that has levels; ``None`` for its default.
        raw: A raw prompt in place of messages; the answer is then text only, without reasoning and
            calls.
        thinking_limit: Limit of the reasoning, requested or not.
        embedding: Texts whose vectors are asked for; nothing is generated then.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    sampling: SamplingWish
    tools: tuple[Mapping[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    thinking: bool = False
    deferred_tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    narrowed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answer_schema: Mapping[str, Any] | None = None
    is_strict: bool = False
    strict_tools: tuple[str, ...] = ()
    logprobs: int | None = None
    effort: str | None = None
    raw: RawPrompt | None = None
    thinking_limit: ThinkingLimit = ThinkingLimit()
    embedding: EmbeddingInputs | None = None

    @property
    def is_scored(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return self.logprobs is not None and self.raw is not None and self.raw.is_echoed

    @property
    def callable_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the answer may call, with the schemas of their arguments."""
        return tuple(
            self._narrowed(tool)
            for tool in (*self.tools, *self.deferred_tools)
            if self.tool_choice.allows(tool["function"]["name"])
        )

    def _narrowed(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        schema = self.narrowed.get(tool["function"]["name"])
        if schema is None:
            return tool
        return {**tool, "function": {**tool["function"], "parameters": schema}}

    def to_bytes(self) -> bytes:
        """Return the canonical JSON form whose digest stands in ``JobSubmitted``."""
        fields = asdict(self)
        fields["sampling"] = self.sampling.to_json()
        # Left out where unused: most requests have none of them.
        if self.raw is None:
            del fields["raw"]
        elif not self.raw.is_begun:
            del fields["raw"]["is_begun"]
        if not self.strict_tools:
            del fields["strict_tools"]
        for message in fields["messages"]:
            if not message["images"]:
                del message["images"]
        del fields["embedding"]
        if self.embedding is not None:
            fields["embedding"] = self.embedding.to_json()
        return canonical_json(fields)

    def asked(self, *, protocol: str, agent: str | None, seeded: bool) -> Digest:
        """Return a digest that is equal for equal requests of the same agent.

        Args:
            protocol: The dialect of the answer.
            seeded: Whether the caller chose the seed; a drawn seed is not compared.
        """
        request = replace(self, messages=unattributed(self.messages))
        if not seeded:
            request = replace(request, sampling=replace(self.sampling, seed=0))
        whose = canonical_json([protocol, agent, seeded])
        return digest_of(whose + b"\n" + request.to_bytes())

    @classmethod
    def from_bytes(cls, payload: bytes) -> ChatRequest:
        """Return the request that ``to_bytes`` encoded; keys of newer writers are ignored."""
        data = json.loads(payload)
        found = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        for name, decode in _DECODERS.items():
            if found.get(name) is not None:
                found[name] = decode(found[name])
        return cls(**found)


def unattributed(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages without their origins."""
    return tuple(replace(one, origin="") if one.origin else one for one in messages)


def images_of(messages: Sequence[Message]) -> tuple[ChatImage, ...]:
    """Return the images of a conversation, in order."""
    return tuple(image for message in messages for image in message.images)


def with_image_notes(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with a note in the place of each image."""
    return tuple(
        replace(one, content=one.content.replace(IMAGE_MARK, IMAGE_NOTE), images=())
        if one.images
        else one
        for one in messages
    )


def canonical_json(value: object) -> bytes:
    """Return the one JSON encoding that is hashed: sorted keys, no white space, UTF-8.

    Raises:
        ValueError: If ``value`` holds NaN or an infinity, which JSON cannot hold.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8", "surrogatepass")


def _tool_choice(data: Mapping[str, Any]) -> ToolChoice:
    allowed = data.get("allowed")
    return ToolChoice(**{**data, "allowed": None if allowed is None else tuple(allowed)})


def _message(data: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in data["tool_calls"])
    images = tuple(ChatImage(**image) for image in data.get("images", ()))
    return Message(**{**data, "tool_calls": calls, "images": images})


#: By name of a field of a request: what JSON does not hold as it is.
_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "messages": lambda messages: tuple(map(_message, messages)),
    "sampling": SamplingWish.from_json,
    **dict.fromkeys(("tools", "stop", "deferred_tools", "strict_tools"), tuple),
    "tool_choice": _tool_choice,
    "raw": lambda data: RawPrompt(**{**data, "ids": tuple(data["ids"])}),
    "thinking_limit": lambda data: ThinkingLimit(**data),
    "embedding": EmbeddingInputs.from_json,
}
