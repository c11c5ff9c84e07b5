"""The answer of a job as the payload table keeps it, its codec, and how much a reader has of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Self

from domain.chat.embedding import Vectors
from domain.chat.generation import EmittedCall, Outcome, OutputRun
from domain.chat.items import (
    Body,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.logprobs import TokenLogprob, from_json, to_json
from domain.chat.request import canonical_json


@dataclass(slots=True, kw_only=True)
class ReaderPosition:
    """How much of an answer a reader has; grows by ``add``.

    Attributes:
        n: Number of the last item, -1 before the first.
        epoch: Epoch of that item. With the first item of a later one the counts begin anew.
        is_counted: Whether the counts below are known. They are unknown for a reader that brings a
            number whose items are no longer stored.
        thinking: Characters of reasoning.
        text: Characters of text.
        calls: Tool calls that have begun.
        arguments: Characters of the arguments of the last call.
        is_call_open: Whether the last call has no end yet.
        logprobs: Tokens of the text whose logprobs the reader has.
        is_over: Whether the reader has the terminal item.
    """

    n: int = -1
    epoch: int = 1
    is_counted: bool = True
    thinking: int = 0
    text: int = 0
    calls: int = 0
    arguments: int = 0
    is_call_open: bool = False
    logprobs: int = 0
    is_over: bool = False

    @classmethod
    def after(cls, items: Iterable[StreamItem], *, epoch: int = 1) -> Self:
        """Return the position of a reader that has the items of an epoch from 0 on."""
        position = cls(epoch=epoch)
        for item in items:
            position.add(item)
        return position

    def add(self, item: StreamItem) -> None:
        """Advance by the next item."""
        if item.n is None:
            return
        if item.epoch > self.epoch:
            self.restart(item.epoch)
        self.n, self.is_over = item.n, item.is_terminal
        match item.body:
            case Text(text=text, logprobs=logprobs):
                self.text += len(text)
                self.logprobs += len(logprobs)
            case Thinking(text=text):
                self.thinking += len(text)
            case body:
                self._add_to_call(body)

    def _add_to_call(self, body: Body) -> None:
        match body:
            case ToolStart():
                self.calls, self.arguments, self.is_call_open = self.calls + 1, 0, True
            case ToolInput(fragment=fragment):
                self.arguments += len(fragment)
            case ToolEnd():
                self.is_call_open = False
            case _:
                return  # the first item and the last one are no part of the answer

    def restart(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        fresh = ReaderPosition(epoch=epoch)
        for field in fields(self):
            setattr(self, field.name, getattr(fresh, field.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The answer of one job, over all its attempts.

    Attributes:
        text: The visible text, without the stop text.
        calls: The tool calls, in order.
        token_ids: All generated ids, without stop tokens; ``None`` where they are not known.
        logprobs: Of the tokens of ``text``; ``None`` where the request asks for none.
        vectors: Of a request for vectors, which has no text.
        order: The order of text, reasoning and calls; an empty one is all reasoning, all text, all
            calls.
    """

    text: str
    thinking: str = ""
    calls: tuple[EmittedCall, ...] = ()
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    vectors: Vectors | None = None
    order: tuple[OutputRun, ...] = ()

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> StoredAnswer:
        """Return the answer of a generation that has ended."""
        return cls(**{one.name: getattr(outcome, one.name) for one in fields(cls)})

    def parts(
        self, position: ReaderPosition | None = None
    ) -> Iterator[Text | Thinking | EmittedCall]:
        """Yield reasoning, texts and calls in order, without those that a reader has begun."""
        had = position or ReaderPosition()
        cursors = {
            "thinking": _Cursor(had.thinking),
            "text": _Cursor(had.text),
            "tool": _Cursor(had.calls),
        }
        values = _Cursor(had.logprobs)
        default = (
            OutputRun("thinking", len(self.thinking)),
            OutputRun("text", len(self.text), len(self.logprobs or ())),
            OutputRun("tool", len(self.calls)),
        )
        for run in self.order or default:
            span, tokens = cursors[run.kind].take(run.length), values.take(run.logprobs)
            if run.kind == "tool":
                yield from self.calls[span]
            elif run.kind == "thinking":
                if part := self.thinking[span]:
                    yield Thinking(text=part, ids=())
            elif part := self.text[span]:
                yield Text(text=part, ids=(), logprobs=(self.logprobs or ())[tokens])

    def lacking(self, position: ReaderPosition) -> Iterator[Body]:
        """Yield what a reader lacks of the answer, as bodies of items."""
        if position.is_call_open and position.calls <= len(self.calls):
            begun = self.calls[position.calls - 1]
            if fragment := begun.arguments[position.arguments :]:
                yield ToolInput(fragment=fragment, ids=())
            if begun.is_complete:
                yield ToolEnd()
        for part in self.parts(position):
            if not isinstance(part, EmittedCall):
                yield part
                continue
            yield ToolStart(id=part.id, name=part.name)
            yield ToolInput(fragment=part.arguments, ids=())
            if part.is_complete:
                yield ToolEnd()

    def to_bytes(self) -> bytes:
        """Return the canonical JSON form, whose digest the last event of the job names."""
        fields: dict[str, object] = {
            "text": self.text,
            "thinking": self.thinking,
            "tool_calls": [asdict(call) for call in self.calls],
        }
        if self.token_ids is not None:
            fields["token_ids"] = list(self.token_ids)
        if self.logprobs is not None:
            fields["logprobs"] = to_json(self.logprobs)
        if self.vectors is not None:
            fields["vectors"] = self.vectors.to_json()
        if self.order:
            fields["order"] = [[run.kind, run.length, run.logprobs] for run in self.order]
        return canonical_json(fields)

    @classmethod
    def from_bytes(cls, payload: bytes) -> StoredAnswer:
        """Return the answer that ``to_bytes`` wrote.

        Keys that a payload lacks have their defaults. Unknown keys are ignored.

        Raises:
            ValueError: The payload is no JSON, or its log-probabilities are malformed.
            KeyError: It has no text.
        """
        data = json.loads(payload)
        ids, logprobs = data.get("token_ids"), data.get("logprobs")
        vectors = data.get("vectors")
        return cls(
            text=data["text"],
            thinking=data.get("thinking", ""),
            # A payload without the mark holds only calls that came to their end.
            calls=tuple(
                EmittedCall(**{"is_complete": True, **call}) for call in data.get("tool_calls", ())
            ),
            token_ids=None if ids is None else tuple(ids),
            logprobs=None if logprobs is None else from_json(logprobs),
            vectors=None if vectors is None else Vectors.from_json(vectors),
            order=tuple(OutputRun(*run) for run in data.get("order", ())),
        )


class _Cursor:
    """Walks over a sequence whose beginning is left out."""

    def __init__(self, skipped: int) -> None:
        self._at, self._skipped = 0, skipped

    def take(self, length: int) -> slice:
        """Return the next elements that are not left out."""
        begin, self._at = self._at, self._at + length
        return slice(max(begin, self._skipped), self._at)
