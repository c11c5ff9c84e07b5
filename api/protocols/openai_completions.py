"""OpenAI's completions of a text, which old programs ask for: as chat turns with plain texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.errors import error_body
from api.http import Dialect
from api.protocols.answer import Answer, hex_of, proper_end
from api.protocols.openai_stream import finish_reason, openai_usage
from api.protocols.parsed import (
    ParsedRequest,
    agent_of,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from api.schemas.base import parse_body
from api.schemas.openai_completions import CompletionBody, TextCompletion
from api.sse import Comment, Frame, Part
from domain.chat import ChatRequest, Message
from domain.errors import InvalidRequest, SemanticError
from domain.ports import IdSource
from domain.stream import Failed, Finished, StreamItem, Text
from domain.values import JobId


def parse(
    body: bytes, headers: Mapping[str, str], *, ids: IdSource, max_tokens_default: int
) -> ParsedRequest:
    """Translate a body of ``POST /v1/completions``.

    Args:
        body: As it came.
        headers: By lower-case name.
        ids: Draws the seed if the caller gave none.
        max_tokens_default: Where the caller sets no limit.

    Raises:
        InvalidRequest: Naming the first field that does not fit.
    """
    wire = parse_body(CompletionBody, body)
    if wire.echo:
        msg = "the prompt is not told again; put it before the answer yourself"
        raise InvalidRequest(msg, field="echo")
    if wire.suffix:
        msg = "texts are not filled in here; only what follows a prompt is written"
        raise InvalidRequest(msg, field="suffix")
    prompt = wire.prompt if isinstance(wire.prompt, str) else wire.prompt[0]
    chat = ChatRequest(
        model=wire.model,
        messages=(Message(role="user", content=prompt),),
        max_tokens=clamp_max_tokens(wire.max_tokens, max_tokens_default),
        sampling=sampling_of(
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            min_p=wire.min_p,
            seed=wire.seed,
            ids=ids,
        ),
        stop=stop_texts(wire.stop),
    )
    return ParsedRequest(
        chat=chat,
        stream=bool(wire.stream),
        include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
        agent=agent_of(headers, session=wire.session_id),
        seeded=wire.seed is not None,
    )


class CompletionEncoder:
    """From items to chunks of text; reasoning is left out, for nobody asked for any.

    Args:
        job_id: Names the completion.
        model: As the caller wrote it.
        created: Unix seconds on every chunk.
        include_usage: Whether a last chunk carries the token counts.
        request_id: For error events.
    """

    def __init__(
        self, *, job_id: JobId, model: str, created: int, include_usage: bool, request_id: str
    ) -> None:
        self._head = _head(job_id, model, created)
        self._include_usage = include_usage
        self._request_id = request_id

    def open(self) -> list[Part]:
        """Return a comment: the first chunk is the first text."""
        return [Comment("begun")]

    def item(self, item: StreamItem) -> list[Part]:
        """Return the chunks that an item calls for."""
        match item.body:
            case Text(text=text):
                return [self._chunk(text)]
            case Finished() | Failed() as body:
                return self._end(body)
            case _:
                return []

    def ping(self) -> list[Part]:
        """Return a comment: this protocol has no event for it."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the terminal event of a stream that could not be finished."""
        return [Frame(data=error_body(error, Dialect.OPENAI, self._request_id))]

    def _end(self, body: Finished | Failed) -> list[Part]:
        end = proper_end(body)
        if isinstance(end, SemanticError):
            return self.fail(end)
        parts: list[Part] = [self._chunk("", finish_reason(end, called=False))]
        if self._include_usage:
            data = self._head | {"choices": [], "usage": openai_usage(end.usage)}
            parts.append(Frame(data=data))
        return [*parts, Frame(data="[DONE]")]

    def _chunk(self, text: str, reason: str | None = None) -> Frame:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return Frame(data=self._head | {"choices": [choice]})


def assemble_text(answer: Answer, *, job_id: JobId, model: str, created: int) -> TextCompletion:
    """Return the whole completion of an answer that finished.

    Args:
        answer: With a ``Finished`` ending.
        job_id: Names the completion.
        model: As the caller wrote it.
        created: Unix seconds.
    """
    ending = answer.ending
    if not isinstance(ending, Finished):
        msg = "only a finished answer can be assembled"
        raise TypeError(msg)
    return {
        "id": f"cmpl-{hex_of(job_id)}",
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "text": answer.joined("text"),
                "logprobs": None,
                "finish_reason": finish_reason(ending, called=False),
            }
        ],
        "usage": openai_usage(ending.usage),
    }


def _head(job_id: JobId, model: str, created: int) -> dict[str, Any]:
    return {
        "id": f"cmpl-{hex_of(job_id)}",
        "object": "text_completion",
        "created": created,
        "model": model,
    }
