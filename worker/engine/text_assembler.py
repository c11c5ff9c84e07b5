"""From token ids to numbered stream items; the same ids always give the same items."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from domain.chat.generation import EmittedCall, GenerationTask
from domain.chat.items import Text, Thinking, ToolEnd, ToolInput, ToolStart
from domain.chat.logprobs import TokenLogprob
from worker.engine.logprob_tracker import LogprobTracker
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import AnswerParser, Part, Section, TextPiece
from worker.engine.output.tool_calls.reader import CallClosed, CallInput, CallOpened
from worker.engine.ports import LoadedModel, TokenLikelihood
from worker.engine.reasoning_limit import ReasoningCount, parser_for

ItemBody = Text | Thinking | ToolStart | ToolInput | ToolEnd


class TextAssembler:
    """Turns the tokens of one generation into items.

    A pure function of the token sequence: a new attempt that feeds the ids of the items said so
    far, and drops what comes back, stands exactly where the attempt before stood after the last of
    those items. That is why a token gives at most one item (two would share ids, and a crash
    between them would lose the second), and why each item carries every id since the one before.
    What one token brings beyond that, such as a whole tool call, is said with the tokens after it.

    Args:
        detokenizer: Fresh.
        splitter: Fresh.
        job_id: From which the ids of calls are made, the same in every attempt.
        opened: What the prompt began on the model's behalf; it belongs to the answer.
        is_single: Whether the answer is over after the first call.
        ledger: Knows how likely tokens are, if that is to be told; fresh.
        echoed: Text that the answer begins with, said with its first token and looked through for
            nothing.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        splitter: AnswerParser,
        *,
        job_id: str = "",
        opened: str = "",
        is_single: bool = False,
        ledger: LogprobTracker | None = None,
        echoed: str = "",
    ) -> None:
        self._detokenizer = detokenizer
        self._splitter = splitter
        self._call_prefix = f"toolu_{job_id.removeprefix('job-')}"
        self._is_single = is_single
        self._ids: list[int] = []
        self._ready: deque[Part] = deque()
        self._said: dict[Section, list[str]] = {section: [] for section in Section}
        self._calls: list[EmittedCall] = []
        #: Arguments of the call that is open.
        self._arguments: list[str] = []
        self._ledger = ledger
        if ledger is not None:
            ledger.skip(opened)
        if echoed:
            # No token stands for it, so the ledger does not hear of it.
            self._ready.append(TextPiece(Section.TEXT, echoed))
        self._take(opened)
        self._reasoning = ReasoningCount(splitter)

    @property
    def stop_sequence(self) -> str | None:
        """The stop text that was met; nothing may be fed after it."""
        return self._splitter.stop_sequence

    @property
    def is_over(self) -> bool:
        """Whether nothing may be fed any more."""
        return self.stop_sequence is not None or self._has_its_call

    @property
    def text(self) -> str:
        """The answer said so far."""
        return "".join(self._said[Section.TEXT])

    @property
    def thinking(self) -> str:
        """The reasoning said so far."""
        return "".join(self._said[Section.THINKING])

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens are reasoning, those of its tags included."""
        return self._reasoning.tokens

    @property
    def calls(self) -> tuple[EmittedCall, ...]:
        """The calls said so far; the last one may lack its end."""
        return tuple(
            call if call.is_complete else replace(call, arguments="".join(self._arguments))
            for call in self._calls
        )

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Of the answer said so far; ``None`` if they are not told."""
        return None if self._ledger is None else tuple(self._ledger.told)

    def feed(self, token: int, likelihood: TokenLikelihood | None = None) -> ItemBody | None:
        """Take the next token and return the item it completes, if it does."""
        assert not self.is_over, "tokens after the end are not part of the answer"
        self._ids.append(token)
        text = self._detokenizer.feed(token)
        if self._ledger is not None:
            self._ledger.add(token, likelihood, text)
        self._take(text)
        self._reasoning.note()
        return self._pop() if self._ready else None

    def flush(self, *, cut: bool = False) -> tuple[ItemBody, ...]:
        """Return the items still held back, at the end of the generation.

        Args:
            cut: The model did not come to its own end.
        """
        if self.stop_sequence is None:
            text = self._detokenizer.flush()
            if self._ledger is not None:
                self._ledger.close(text)
            self._take(text)
            self._queue(self._splitter.flush(cut=cut))
        pieces = []
        while self._ready and not self._has_its_call:
            pieces.append(self._pop())
        return tuple(pieces)

    @property
    def _has_its_call(self) -> bool:
        return self._is_single and bool(self._calls) and self._calls[0].is_complete

    def _take(self, text: str) -> None:
        if text:
            self._queue(self._splitter.feed(text))

    def _queue(self, parts: Iterable[Part]) -> None:
        for part in parts if self._ledger is None else map(self._attributed, parts):
            joined = _joined(self._ready[-1], part) if self._ready else None
            if joined is not None:
                self._ready[-1] = joined
            else:
                self._ready.append(part)

    def _attributed(self, part: Part) -> Part:
        """Return a part of the answer with the tokens that it begins."""
        assert self._ledger is not None, "nothing is known of tokens"
        if not isinstance(part, TextPiece):
            self._ledger.let_go()
            return part
        end = part.start + len(part.text)
        if part.section is Section.THINKING:
            self._ledger.let_go(end)
            return part
        return replace(part, logprobs=self._ledger.take(part.start, end))

    def _later(self) -> tuple[TokenLogprob, ...]:
        """Return what is known of the tokens of the next item and is told with another."""
        if self._ledger is None:
            return ()
        ready = [part.logprobs for part in self._ready if isinstance(part, TextPiece)]
        return self._ledger.later(len(self._ids), ready)

    def _pop(self) -> ItemBody:
        part, later = self._ready.popleft(), self._later()
        ids, self._ids = tuple(self._ids), []
        match part:
            case TextPiece(Section.TEXT, text):
                self._said[Section.TEXT].append(text)
                if self._ledger is not None:
                    self._ledger.told += part.logprobs
                return Text(text=text, ids=ids, logprobs=part.logprobs, later=later)
            case TextPiece(section, text):
                self._said[section].append(text)
                return Thinking(text=text, ids=ids, later=later)
            case CallOpened(name):
                call = EmittedCall(id=f"{self._call_prefix}_{len(self._calls)}", name=name)
                self._calls.append(call)
                self._arguments = []
                return ToolStart(id=call.id, name=name, ids=ids, later=later)
            case CallInput(fragment):
                self._arguments.append(fragment)
                return ToolInput(fragment=fragment, ids=ids, later=later)
            case CallClosed():
                whole = "".join(self._arguments)
                self._calls[-1] = replace(self._calls[-1], arguments=whole, is_complete=True)
                return ToolEnd(ids=ids, later=later)


def assembler_for(model: LoadedModel, task: GenerationTask) -> TextAssembler:
    """Return what puts the answer to ``task`` together, from its first token on."""
    prompt = task.prompt
    return TextAssembler(
        model.detokenizer(),
        parser_for(model, prompt, task.stop),
        job_id=task.job_id,
        opened=prompt.opened,
        is_single=prompt.single_call,
        ledger=None if prompt.logprobs is None else LogprobTracker(model.token_bytes, task.known),
        echoed=prompt.echoed,
    )


def _joined(before: Part, part: Part) -> Part | None:
    """Return two parts as one, if they are alike."""
    if (
        isinstance(before, TextPiece)
        and isinstance(part, TextPiece)
        and before.section is part.section
    ):
        logprobs = before.logprobs + part.logprobs
        return TextPiece(part.section, before.text + part.text, before.start, logprobs)
    if isinstance(before, CallInput) and isinstance(part, CallInput):
        return CallInput(before.fragment + part.fragment)
    return None
