"""Renders a request to the token ids that the model reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, takewhile
from typing import Any, Final

from jinja2 import TemplateError

from domain.chat.images import IMAGE_MARK, ChatImage
from domain.chat.request import (
    ChatRequest,
    Message,
    ToolCall,
    canonical_json,
    images_of,
    with_image_notes,
)
from domain.errors import InvalidRequest
from domain.kv.hashing import common_tokens
from domain.values import PromptEncoding
from ops.models.hub_cache import READS_TEXT_ONLY
from worker.engine.mlx.prompt import harmony
from worker.engine.mlx.prompt.segment_tokenizer import (
    PromptTokenizer,
    RawRenderer,
    with_reasoning_apart,
)
from worker.engine.mlx.untyped import Tokenizer
from worker.engine.mlx.vision.encoder import ImageReader
from worker.engine.output.channel_parser import HARMONY, ChannelFormat
from worker.engine.output.tool_calls.reader import ToolFormat
from worker.engine.ports import RenderedPrompt

#: Beginnings of a message; each joins with the characters before it in another way.
_BEGINNINGS: Final = ("", "a", "\n")


def leading_turns(request: ChatRequest, stand_in: str) -> tuple[Message, ...]:
    """Return the system messages and a first message with ``stand_in`` as its text.

    Returns:
        No message if the request has neither tools nor system messages, or nothing after them.
    """
    turns = tuple(takewhile(lambda one: one.role == "system", request.messages))
    is_bare = not turns and not request.tools
    if is_bare or len(turns) == len(request.messages):
        return ()
    # A result or a call alone is refused by many templates.
    return (*turns, Message(role="user", content=stand_in))


def preamble_end(
    tokens: Sequence[int], preamble: str, encode: Callable[[str], tuple[int, ...]]
) -> int | None:
    """Return the number of tokens that every prompt with this preamble begins with.

    Args:
        tokens: Ids of one of these prompts.
        preamble: The text before the first message's text.

    Returns:
        ``None`` if there are none, or if this prompt does not begin with them.
    """
    first, *others = (encode(preamble + beginning) for beginning in _BEGINNINGS)
    end = min(common_tokens(first, other) for other in others)
    return end if end and tuple(tokens[:end]) == first[:end] else None


def with_instructions(request: ChatRequest, *, is_opened: bool) -> ChatRequest:
    """Return the request with its tool choice and answer format as a final remark.

    Args:
        is_opened: Whether the prompt already opens the call that the request demands.
    """
    remarks = [remark for remark in (_on_tools(request, is_opened), _on_form(request)) if remark]
    if not remarks:
        return request
    text = "<system-reminder>\n" + "\n".join(remarks) + "\n</system-reminder>"
    last = request.messages[-1]
    if last.role == "assistant":
        return replace(request, messages=(*request.messages, Message(role="user", content=text)))
    content = f"{last.content}\n\n{text}" if last.content else text
    return replace(request, messages=(*request.messages[:-1], replace(last, content=content)))


def _on_tools(request: ChatRequest, is_opened: bool) -> str:  # noqa: FBT001 - private
    choice = request.tool_choice
    if choice.allowed is not None:
        return f"Of the tools, call none but these: {', '.join(choice.allowed) or 'none'}."
    if is_opened or not (request.tools or request.deferred_tools):
        return ""
    match choice.mode:
        case "none":
            return "Answer in words. Do not call any tool."
        case "any":
            return "Answer with a call of one of the tools."
        case "tool":
            return f"Answer with a call of the tool {choice.name}."
        case "auto":
            return ""


def _on_form(request: ChatRequest) -> str:
    schema: Mapping[str, Any] | None = request.answer_schema
    if schema is None:
        return ""
    if not schema:
        return "Answer with one JSON object and nothing else."
    text = canonical_json(dict(schema)).decode(errors="replace")
    return f"Answer with nothing but JSON that matches this JSON schema: {text}"


#: Tokens at the end of a prompt that are searched for an opened reasoning section.
OPENING_TOKENS_MAX = 16
MISTRAL_ID_CHARS = 9
#: Replaces an answer's text, to find its place in the rendered prompt.
STAND_IN = "[[placeholder of an answer]]"
#: The marker after a gpt-oss call.
CALL_END = HARMONY.last_ends[1]
_AROUND_ONE = 2
#: Exceptions that a chat template raises when it cannot render a conversation.
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)

Turn = dict[str, Any]


class PromptRenderer:
    """Renders requests with the model's chat template. May be called from many threads at once.

    Args:
        tokens_max: Longest prompt that is encoded; ``None`` for any length.
        images: Reads the images of requests, or why there is nothing that does.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool_format: ToolFormat | None = None,
        channel_format: ChannelFormat | None = None,
        tokens_max: int | None = None,
        images: ImageReader | str = READS_TEXT_ONLY,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._tool_format = tool_format
        self._is_harmony = channel_format is HARMONY
        self._prompts = PromptTokenizer(tokenizer, tokens_max)
        self._raw = RawRenderer(tokenizer, self._prompts.encode_prompt)

    def render(
        self, request: ChatRequest, encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT
    ) -> RenderedPrompt:
        """Return the prompt.

        Args:
            encoding: How the caller's text is encoded; a raw prompt's marks are always read.

        Raises:
            InvalidRequest: The template refuses the messages, also in simplified form, or the model
                cannot read a raw prompt, or has no form for the call that is demanded.
            PromptTooLong: The prompt is several times too long; its length is an estimate.
        """
        if request.raw is not None:
            return self._raw.render(request.raw)
        if self._tool_format is None and request.tool_choice.mode in {"any", "tool"}:
            msg = "the model's chat template has no form for tool calls: none can be demanded"
            raise InvalidRequest(msg, field="tool_choice")
        request = self._readable(request)
        text, opened = self._whole(request, encoding)
        ids = self._ids(text + opened, images_of(request.messages))
        if not ids:
            raise InvalidRequest("the messages hold nothing to answer", field="messages")
        return RenderedPrompt(
            ids,
            opened,
            message_starts=self._message_starts(request, encoding, text, ids),
            last_message=self._last_message(request, encoding, text + opened, len(ids)),
        )

    def render_after(
        self,
        request: ChatRequest,
        turn: int,
        encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
    ) -> RenderedPrompt | None:
        """Return the part of the prompt after an assistant turn, starting with its end marker.

        Args:
            turn: Index of the turn among the messages; not the last message.

        Returns:
            ``None`` if the template changes the turn's text, or refuses it.
        """
        assert request.messages[turn].role == "assistant", "only answers are echoed"
        calls = request.messages[turn].tool_calls if self._is_harmony else ()
        if len(calls) > 1:
            return None  # The template writes their results between them.
        stand_in = Message(
            role="assistant",
            content="" if calls else STAND_IN,
            # The calls stay, because a result takes its tool name from its call.
            tool_calls=tuple(replace(call, arguments={STAND_IN: ""}) for call in calls),
        )
        request = self._readable(request)
        messages = (*request.messages[:turn], stand_in, *request.messages[turn + 1 :])
        try:
            text, opened = self._whole(replace(request, messages=messages), encoding)
        except InvalidRequest:
            return None
        pieces = text.split(STAND_IN)
        if len(pieces) != _AROUND_ONE:
            return None
        after = pieces[1]
        if calls:
            _, mark, after = after.partition(CALL_END)
            after = mark + after
        if not after:
            return None
        text = after + opened
        ids = self._ids(text, images_of(request.messages[turn + 1 :]))
        last_message = self._last_message(request, encoding, text, len(ids))
        return RenderedPrompt(ids, opened, last_message=last_message)

    def has_only_messages(self, request: ChatRequest) -> bool:
        """Whether the prompt holds no instruction besides the messages."""
        is_opened = self._opening_suffices(request, self._opening(request))
        return with_instructions(request, is_opened=is_opened) is request

    def shares_preamble(self, before: ChatRequest, request: ChatRequest) -> bool:
        """Whether both prompts have the same text before the messages, given the same tools."""
        # gpt-oss always reasons: its template has effort levels and no switch.
        is_switched = not self._is_harmony and before.thinking != request.thinking
        return not is_switched and self._effort(before) == self._effort(request)

    def _whole(self, request: ChatRequest, encoding: PromptEncoding) -> tuple[str, str]:
        """Return the prompt's text, and the beginning of the answer that it opens."""
        opened = self._opening(request)
        text = self._text(
            with_instructions(request, is_opened=self._opening_suffices(request, opened)), encoding
        )
        tag = self._tokenizer.think_start
        if opened and tag is not None and text.rstrip().endswith(tag):
            # A demanded call starts at once, so the open reasoning section is closed.
            text += f"\n{self._tokenizer.think_end}\n\n"
        return self._with_images(text, images_of(request.messages)), opened

    def _readable(self, request: ChatRequest) -> ChatRequest:
        """Return the request with a note in the place of each image that is not read.

        Raises:
            InvalidRequest: The newest question has such an image.
        """
        if not isinstance(self._images, str) or not images_of(request.messages):
            return request
        newest = next(one for one in reversed(request.messages) if one.role == "user")
        if newest.images:
            msg = f"{self._images}: an image cannot be part of the question"
            raise InvalidRequest(msg, field="messages")
        return replace(request, messages=with_image_notes(request.messages))

    def _with_images(self, text: str, images: Sequence[ChatImage]) -> str:
        """Return a prompt's text with what the model reads in the place of each image."""
        if not images or isinstance(self._images, str):
            return text
        before, *rest = text.split(IMAGE_MARK)
        if len(rest) != len(images):
            msg = "the model's chat template does not write each image of the messages once"
            raise InvalidRequest(msg, field="messages")
        read = self._images.read
        return before + "".join(
            read(image).text + part for image, part in zip(images, rest, strict=True)
        )

    def _ids(self, text: str, images: Sequence[ChatImage]) -> tuple[int, ...]:
        """Return the ids of a text with these images, each of whose tokens has an id of its own."""
        ids = self._prompts.encode_prompt(text)
        if not images or isinstance(self._images, str):
            return ids
        reader = self._images
        runs = list(chain.from_iterable(reader.read(image).id_runs() for image in images))
        if ids.count(reader.placeholder) != len(runs):
            msg = "the prompt has marks of images that stand for none"
            raise InvalidRequest(msg, field="messages")
        following = iter(runs)
        return tuple(
            chain.from_iterable(
                next(following) if token == reader.placeholder else (token,) for token in ids
            )
        )

    def _message_starts(
        self, request: ChatRequest, encoding: PromptEncoding, text: str, ids: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return where the first message after tools and system prompt begins, if that is exact."""
        turns = leading_turns(request, STAND_IN)
        if not turns:
            return ()
        try:
            pieces = self._text(replace(request, messages=turns), encoding).split(STAND_IN)
        except InvalidRequest:
            return ()
        # A template that writes tools or date before the last message has no common preamble.
        if len(pieces) != _AROUND_ONE or not text.startswith(pieces[0]):
            return ()
        end = preamble_end(ids, pieces[0], self._prompts.encode_prompt)
        return () if end is None else (end,)

    def _last_message(
        self, request: ChatRequest, encoding: PromptEncoding, text: str, tokens: int
    ) -> int:
        """Return where the text of the last message begins, or a token before; 0 if unknown."""
        content = request.messages[-1].content.strip()
        if encoding >= PromptEncoding.MARKS_AS_TEXT:
            content = self._prompts.marks.broken(content)
        at = text.rfind(content)  # a template may write it in another form
        if not content or at < 0:
            return 0
        # Its first character may share a token with the ones before.
        return max(0, tokens - len(self._prompts.encode_prompt(text[at:])) - 1)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text in which every mark is read as a token."""
        return self._prompts.encode(text)

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether the template leaves a reasoning section open at the end of the prompt."""
        tag = self._tokenizer.think_start
        if tag is None:
            return False
        tail: str = self._tokenizer.decode(list(prompt[-OPENING_TOKENS_MAX:]))
        return tail.rstrip().endswith(tag)

    def _opening_suffices(self, request: ChatRequest, opened: str) -> bool:
        """Whether the opened call expresses the tool choice, so that no instruction is needed."""
        names_it = self._tool_format is not None and bool(self._tool_format.opening_named)
        return bool(opened) and (request.tool_choice.mode != "tool" or names_it)

    def _opening(self, request: ChatRequest) -> str:
        """Return the beginning of the call that the tool choice demands, or an empty text."""
        choice, tool_format = request.tool_choice, self._tool_format
        if tool_format is None or not request.callable_tools:
            return ""
        if choice.mode == "tool" and tool_format.opening_named:
            name = json.dumps(choice.name, ensure_ascii=False)[1:-1]
            return tool_format.opening_named.replace("NAME", name)
        return tool_format.opening if choice.mode in ("any", "tool") else ""

    def _text(self, request: ChatRequest, encoding: PromptEncoding) -> str:
        breaks = encoding >= PromptEncoding.MARKS_AS_TEXT
        if not self._tokenizer.has_chat_template:
            text = _plain_dialogue(request.messages)
            return self._prompts.marks.broken(text) if breaks else text
        if breaks:
            request = self._with_reasoning_apart(request)
        as_written = self._prompts.marks.broken_deeply if breaks else lambda value: value
        as_taken = harmony.tool_of if self._is_harmony else dict[str, Any]
        tools = as_written([as_taken(tool) for tool in request.tools])
        for turns in self._spellings(request.messages):
            try:
                return self._apply(request, as_written(turns), tools)
            except _REFUSALS:
                pass
        try:
            return self._apply(request, as_written(_simplified(request.messages)), tools)
        except _REFUSALS as error:
            msg = f"the model's chat template refuses these messages: {error}"
            raise InvalidRequest(msg, field="messages") from error

    def _spellings(self, messages: Sequence[Message]) -> Iterator[list[Turn]]:
        """Yield the conversation in the forms that chat templates accept."""
        if self._is_harmony:
            yield [harmony.turn_of(one, _call) for one in harmony.one_call_each(messages)]
            return
        yield [_turn(message, str) for message in messages]
        # Mistral's templates accept only call ids of nine letters and digits.
        yield [_turn(message, _short_id) for message in messages]

    def _with_reasoning_apart(self, request: ChatRequest) -> ChatRequest:
        start, end = self._tokenizer.think_start, self._tokenizer.think_end
        if end is None or not self._prompts.marks.is_mark(end):
            return request
        messages = tuple(with_reasoning_apart(turn, start, end) for turn in request.messages)
        return replace(request, messages=messages)

    def _apply(self, request: ChatRequest, turns: list[Turn], tools: list[dict[str, Any]]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            turns,
            tools=tools or None,
            add_generation_prompt=True,
            enable_thinking=request.thinking,
            tokenize=False,
            **self._effort(request),
        )
        return text

    def _effort(self, request: ChatRequest) -> dict[str, str]:
        return harmony.effort_of(request.effort) if self._is_harmony else {}


def _short_id(call_id: str) -> str:
    return sha256(call_id.encode("utf-8", "replace")).hexdigest()[:MISTRAL_ID_CHARS]


def _turn(message: Message, named: Callable[[str], str]) -> Turn:
    turn: Turn = {"role": message.role, "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [{**_call(call), "id": named(call.id)} for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = named(message.tool_call_id)
    return turn


def _call(call: ToolCall) -> Turn:
    # Templates test ``is mapping`` and call ``tojson``, which need a dict.
    function = {"name": call.name, "arguments": dict(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _simplified(messages: Sequence[Message]) -> list[Turn]:
    """Return the conversation as alternating user and assistant turns, for simple templates.

    Instructions and tool results become user text; neighbours of one role become one turn.
    """
    turns: list[Turn] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        content = _with_calls(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += "\n\n" + content
        else:
            turns.append({"role": role, "content": content})
    if turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": ""})
    return turns


def _with_calls(message: Message) -> str:
    calls = [
        f"[call {call.name} {canonical_json(dict(call.arguments)).decode(errors='replace')}]"
        for call in message.tool_calls
    ]
    return "\n".join([message.content, *calls]) if calls else message.content


def _plain_dialogue(messages: Sequence[Message]) -> str:
    """Return a plain transcript, for models without a chat template."""
    lines = [f"{message.role.capitalize()}: {_with_calls(message)}" for message in messages]
    return "\n\n".join([*lines, "Assistant:"])
