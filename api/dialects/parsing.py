"""What parsers of dialects share: sampling, turns, images, tools, the agent of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, Final, Literal, Protocol

from api.generation import ParsedRequest, RequestDefaults
from api.http.bodies import MAX_TOKENS_CEILING, NAME_PATTERN, load_json
from domain.chat.images import (
    IMAGE_MARK,
    ChatImage,
    image_of_base64,
    image_of_url,
    unmarked,
)
from domain.chat.request import ChatRequest, Message, ToolChoice, canonical_json
from domain.errors import InvalidRequest
from domain.ports import IdSource
from domain.values import SEED_MAX, AgentId, SamplingOptions, SamplingWish

#: Reasoning efforts that the vendors define.
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


#: Parses the body of a request, given its headers by lower-case name, and values for open fields.
#: An ``InvalidRequest`` names the first invalid field.
RequestParser = Callable[[bytes, Mapping[str, str], RequestDefaults], ParsedRequest]


def sampling_of(options: SamplingOptions, seed: int | None, ids: IdSource) -> SamplingWish:
    """Return the requested sampling, with a drawn seed if the request has none.

    Parameters that the request leaves out take the model's defaults later.

    Args:
        seed: Seed of the request; the sign bit of a negative one is dropped.
    """
    return SamplingWish(**options.given(), seed=ids.seed() if seed is None else seed & SEED_MAX)


def clamp_max_tokens(wanted: int | None, default: int) -> int:
    """Return the token limit of the request, lowered to the ceiling if it is larger."""
    return min(wanted if wanted is not None else default, MAX_TOKENS_CEILING)


def effort_of(wanted: str | None) -> str | None:
    """Return the reasoning effort of a request, ``None`` if no vendor defines it."""
    return wanted if wanted in _EFFORTS else None


def repeat_for_answers(chat: ChatRequest, answers: int) -> tuple[ChatRequest, ...]:
    """Return a generation ``answers`` times with consecutive seeds.

    The first seed is the given one, so that the first answer equals the answer of a request for a
    single one.
    """
    first = chat.sampling
    return tuple(
        replace(chat, sampling=replace(first, seed=(first.seed + number) & SEED_MAX))
        for number in range(answers)
    )


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct stop texts in order, without empty ones."""
    texts = [stop] if isinstance(stop, str) else stop or ()
    return tuple(dict.fromkeys(text for text in texts if text))


#: Joins the text parts of one turn.
PART_BREAK = "\n"
#: Joins turns.
TURN_BREAK = "\n\n"


def merge_turns(system: Iterable[str], turns: Iterable[Message]) -> tuple[Message, ...]:
    """Return one leading system turn, then the other turns; adjacent ones of a role are joined.

    Leading system turns join the system prompt. A later system turn becomes a reminder inside a
    user turn: templates accept a system turn only first, and a move to the front would change
    every token after it. One such turn is moved all the same: directly after the first user turn
    it goes before that turn. Claude Code sends its environment there, equal for every question,
    so that sessions share it as a prefix and the question stands last.

    Args:
        system: Texts of the system prompt; empty ones are dropped.
    """
    texts = [text for text in system if text]
    merged: list[Message] = []
    moved = False
    for turn in turns:
        if turn.role == "system":
            if not merged:
                texts.extend([turn.content] if turn.content else [])
                continue
            text = f"<system-reminder>\n{turn.content}\n</system-reminder>"
            turn = Message(role="user", content=text)  # noqa: PLW2901 - replaced
            if not moved and len(merged) == 1 and merged[0].role == "user":
                moved = True
                merged[0] = _joined(turn, merged[0])
                continue
        if merged and _joins(merged[-1], turn):
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    if not merged:
        # Templates need a user turn; a request with a system text alone is legal.
        merged.append(Message(role="user", content=""))
    lead = [Message(role="system", content=TURN_BREAK.join(texts))] if texts else []
    return (*lead, *merged)


def _joins(before: Message, turn: Message) -> bool:
    # Each tool result stays with its call, and text after a call is a turn of its own.
    return before.role == turn.role != "tool" and not before.tool_calls


def _joined(before: Message, turn: Message) -> Message:
    if before.images or turn.images:
        before, turn = (
            one if one.images else replace(one, content=unmarked(one.content))
            for one in (before, turn)
        )
    return replace(
        before,
        content=_join_texts(before.content, turn.content),
        reasoning=_join_texts(before.reasoning, turn.reasoning),
        tool_calls=turn.tool_calls,
        origin="",  # the joined turn comes from two answers
        images=before.images + turn.images,
    )


def _join_texts(first: str, second: str) -> str:
    return TURN_BREAK.join(text for text in (first, second) if text)


#: Remarks at the end of the system prompt for OpenAI's verbosity.
VERBOSITY: Final[Mapping[str, str]] = {
    "low": "Keep your answers short.",
    "high": "Answer in detail.",
}


def with_verbosity(turns: Iterable[Message], wanted: str | None) -> tuple[Message, ...]:
    """Return turns with the remark that asks for a length, if any is wanted.

    It ends the system prompt: behind the last question, the next prompt would part there.
    """
    every = tuple(turns)
    remark = VERBOSITY.get(wanted or "")
    if remark is None:
        return every
    leading = len(tuple(takewhile(lambda turn: turn.role == "system", every)))
    return (*every[:leading], Message(role="system", content=remark), *every[leading:])


def described(schema: Mapping[str, Any] | None, description: str | None) -> Mapping[str, Any]:
    """Return the schema of an answer with the description that stands beside it."""
    return ({"description": description} if description else {}) | dict(schema or {})


#: Takes the place of an image of an earlier turn that is not in the request.
IMAGE_UNSENT: Final = "[image left out: the request does not contain its data]"
#: Types of parts that are images, in any dialect.
IMAGE_TYPES: Final = frozenset({"image", "image_url", "input_image"})


class ImageCollector:
    """Takes the images out of the content of one message, in order.

    Args:
        where: Place of the content in the body.
        is_question: Whether an image that cannot be read is an error; a note takes the place of
            others, so that a conversation can go on.

    Attributes:
        images: Those found so far.
        place: Index of the present part of the content, for errors.
    """

    def __init__(self, where: str = "", *, is_question: bool = False) -> None:
        self._where, self._is_question = where, is_question
        self.images: list[ChatImage] = []
        self.place = 0

    def of_base64(self, data: str | None) -> str:
        """Return what stands for an image in the text."""
        return self._mark(partial(image_of_base64, data))

    def of_url(self, url: str | None) -> str:
        """Return what stands in the text for the image of a URL."""
        return self._mark(partial(image_of_url, url))

    def _mark(self, image_of: Callable[[str], ChatImage]) -> str:
        try:
            self.images.append(image_of(f"{self._where}.{self.place}"))
        except InvalidRequest:
            if self._is_question:
                raise
            return IMAGE_UNSENT
        return IMAGE_MARK


#: Types of parts of OpenAI's dialects that are no text either.
_UNREAD_TYPES: Final = frozenset({"file", "input_file", "input_audio"})


class TypedPart(Protocol):
    """A part of a content."""

    @property
    def type(self) -> str:
        """Its type in its dialect."""
        ...


def newest_of_user(roles: Iterable[str | None]) -> int:
    """Return the index of the last turn of the user, -1 if there is none."""
    return max((index for index, role in enumerate(roles) if role == "user"), default=-1)


def refuse_unread(content: str | Sequence[TypedPart] | None, where: str) -> None:
    """Refuse a question with a file or a recording.

    Raises:
        InvalidRequest: The error names the part.
    """
    if content is None or isinstance(content, str):
        return
    for place, part in enumerate(content):
        if part.type in _UNREAD_TYPES:
            msg = (
                f"this service reads text and images: a part of type {part.type} cannot be in the"
                " question"
            )
            raise InvalidRequest(msg, field=f"{where}.content.{place}")


_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


def function_tool(
    name: str, description: str | None, parameters: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return a tool in function format.

    Args:
        description: Text for the model.
    """
    function = {
        "name": name,
        "description": description or "",
        "parameters": parameters or _NO_PARAMETERS,
    }
    return {"type": "function", "function": function}


def model_tool_name(family: str | None, name: str) -> str:
    """Return the name by which the model calls a tool of a toolset or a namespace, if of one."""
    return f"{family}__{name}" if family else name


def function_text(tool: Mapping[str, Any]) -> str:
    """Return the description of a tool that a search has found.

    The text stands in the message that reports the search. The beginning of the prompt, with the
    tools that were known before, stays the same and can be reused from the cache.
    """
    text = canonical_json(tool["function"]).decode(errors="replace")
    return f"<function>{text}</function>"


def arguments_of(text: str) -> Mapping[str, Any]:
    """Return the arguments of a tool call; malformed ones as the member ``unparsed``.

    A malformed call stays in the client's history, so it must not fail every later request.
    """
    try:
        value = load_json(text)
    except InvalidRequest:
        value = None
    return (
        value if isinstance(value, dict) else {"unparsed": text.encode("utf-8", "replace").decode()}
    )


Mode = Literal["auto", "none", "any", "tool"]


def choice_of(
    mode: Mode,
    name: str | None,
    *,
    parallel: bool,
    tools: Sequence[Mapping[str, Any]],
    field: str,
    allowed: tuple[str, ...] | None = None,
) -> ToolChoice:
    """Return the choice after checking that the tools can satisfy it.

    Args:
        name: The tool of mode ``tool``.
        parallel: Whether one answer may contain several calls.
        tools: The tools of the request, in function format.
        field: Field of the request that errors name.
        allowed: Names of the tools that may be called; ``None`` for all.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
    """
    if mode == "tool" and name not in {tool["function"]["name"] for tool in tools}:
        raise InvalidRequest(f"there is no tool {name!r} among the tools", field=field)
    if mode == "any" and not (tools if allowed is None else allowed):
        raise InvalidRequest("a call is demanded, but there are no tools", field=field)
    return ToolChoice(
        mode=mode, name=name if mode == "tool" else None, parallel=parallel, allowed=allowed
    )


#: Longest ``metadata.user_id`` that is searched for a session, in characters.
USER_ID_CHARS_MAX: Final = 4096

_AGENT_ID = re.compile(NAME_PATTERN)
#: Headers that name a session and a thread or subagent in it: Claude Code, Codex, older Codex,
#: and opencode, which sends the same value in both.
_SESSION_HEADERS: Final = (
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ("session-id", "thread-id"),
    ("session_id", "conversation_id"),
    ("x-session-id", "x-session-affinity"),
)
_OLD_USER_ID: Final = re.compile(r"user_\w*_account_[\w-]*?_session_([0-9a-f-]{36})")


def agent_of(
    headers: Mapping[str, str],
    *,
    named: str | None = None,
    session: str | None = None,
    cache_key: str | None = None,
    user_id: str | None = None,
) -> AgentId | None:
    """Return the agent of a request: the first valid id among these.

    For a request without a valid id, ``domain.job.history_matching`` derives the agent later.
    Values that are not valid ids are ignored and never refused.

    Args:
        headers: Headers by lower-case name; Claude Code and Codex name a session and a subagent.
        named: The explicit id of the agent, which takes precedence.
        session: ``session_id`` of the body, an extension of this service.
        cache_key: OpenAI's ``prompt_cache_key``: requests with the same key share a prefix.
        user_id: Anthropic's ``metadata.user_id``, in which Claude Code also sends its session.
    """
    # Equal values, as of Codex's main thread, stand once.
    sessions = (
        "/".join(dict.fromkeys(headers[name] for name in names if name in headers))
        for names in _SESSION_HEADERS
    )
    for name in (named, *sessions, session, cache_key, _session_in(user_id)):
        if name and _AGENT_ID.fullmatch(name):
            return AgentId(name)
    return None


def _session_in(user_id: str | None) -> str | None:
    """Return the session in a ``user_id`` of Claude Code; other clients send the id of a user.

    Claude Code sends JSON with a ``session_id``; older versions send
    ``user_…_account_…_session_<uuid>``.
    """
    if not user_id or len(user_id) > USER_ID_CHARS_MAX:
        return None
    found = _OLD_USER_ID.fullmatch(user_id)
    if found is not None:
        return found[1]
    try:
        value = json.loads(user_id)
    except (ValueError, RecursionError):
        return None
    session = value.get("session_id") if isinstance(value, dict) else None
    return session if isinstance(session, str) else None
