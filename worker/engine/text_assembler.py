"""Turn token ids into the bodies of stream items, with log probabilities of their parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from domain.chat.generation import EmittedCall, GenerationTask, OutputRun
from domain.chat.items import Text, Thinking, ToolEnd, ToolInput, ToolStart
from domain.chat.logprobs import Alternative, TokenLogprob
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import AnswerParser, Part, Section, TextPiece
from worker.engine.output.tool_calls.reader import CallClosed, CallInput, CallOpened
from worker.engine.ports import LoadedModel, TokenLikelihood
from worker.engine.reasoning_limit import ReasoningCount


@dataclass(slots=True)
class _Placed:
    """A token and its range of characters in the decoded output."""

    value: TokenLogprob
    start: int
    end: int


class LogprobTracker:
    """The log probabilities of tokens whose text may become part of the answer.

    A token belongs to the answer if at least one of its characters does; it is emitted with the
    first of them. Several tokens of one character share that character. Tokens of tags, tool calls
    and reasoning, and tokens without bytes, are discarded.

    Args:
        recorded: Log probabilities that earlier attempts recorded, by index of the token.
        keeps_all: Whether tokens without bytes, and the one that ends the answer, are part of it.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        recorded: Mapping[int, TokenLogprob] | None = None,
        *,
        keeps_all: bool = False,
    ) -> None:
        self.keeps_all = keeps_all
        self._token_bytes = token_bytes
        self._recorded = recorded or {}
        #: Number of tokens added.
        self._count = 0
        #: Number of characters decoded, and the same before the latest token.
        self._at = self._before = 0
        #: Tokens of a character that is not complete.
        self._open: list[TokenLogprob] = []
        self._placed: deque[_Placed] = deque()
        #: Log probabilities of the answer's tokens so far.
        self.emitted: list[TokenLogprob] = []

    def skip(self, text: str) -> None:
        """Advance past text that belongs to no token."""
        self._before = self._at
        self._at += len(text)

    def add(self, token: int, likelihood: TokenLikelihood | None, text: str) -> None:
        """Add the next token.

        Args:
            likelihood: ``None`` for a token of an earlier attempt.
            text: Text that the token completes; empty inside a character.
        """
        value = self._recorded.get(self._count)
        if likelihood is not None:
            value = self._logprob_at(self._count, token, likelihood)
        if value is not None and (value.token or self.keeps_all):
            self._open.append(value)
        self._count += 1
        self.close(text)

    def recorded_prompt(self) -> tuple[TokenLogprob, ...]:
        """Return what earlier attempts recorded of the prompt's tokens."""
        return tuple(self._recorded[index] for index in sorted(self._recorded) if index < 0)

    def prompt(
        self, tokens: Sequence[int], likelihoods: Sequence[TokenLikelihood]
    ) -> tuple[TokenLogprob, ...]:
        """Return the log probabilities of a prompt's tokens; ``likelihoods`` lacks the first."""
        given = (TokenLikelihood(0.0), *likelihoods)
        pairs = enumerate(zip(tokens, given, strict=True), -len(tokens))
        return tuple(self._logprob_at(index, token, one) for index, (token, one) in pairs)

    def take_rest(self) -> tuple[TokenLogprob, ...]:
        """Remove and return the tokens after the last character, if all tokens are kept."""
        rest = (*(placed.value for placed in self._placed), *self._open) if self.keeps_all else ()
        self._placed.clear()
        self._open = []
        return rest

    def close(self, text: str) -> None:
        """Assign text to the tokens added since the last text."""
        self.skip(text)
        if text:
            self._placed += [_Placed(value, self._before, self._at) for value in self._open]
            self._open = []

    def take(self, start: int, end: int) -> tuple[TokenLogprob, ...]:
        """Remove and return the tokens of a range of answer characters; discard those before it."""
        taken = []
        while self._placed and self._placed[0].start < end:
            placed = self._placed.popleft()
            if placed.end > start:
                taken.append(placed.value)
        return tuple(taken)

    def discard(self, end: int | None = None) -> None:
        """Discard tokens that end at or before a character, by default before the latest token."""
        limit = self._before if end is None else end
        while self._placed and self._placed[0].end <= limit:
            self._placed.popleft()

    def pending(
        self, last: int, ready: Iterable[tuple[TokenLogprob, ...]]
    ) -> tuple[TokenLogprob, ...]:
        """Return the log probabilities of the ``last`` newest tokens that are not emitted yet.

        Args:
            ready: Log probabilities already taken for texts that wait to be emitted.
        """
        first = self._count - last
        waiting = [value for values in ready for value in values]
        waiting += [placed.value for placed in self._placed]
        return tuple(value for value in (*waiting, *self._open) if value.index >= first)

    def _logprob_at(self, index: int, token: int, likelihood: TokenLikelihood) -> TokenLogprob:
        top = [Alternative(self._token_bytes(other), logprob) for other, logprob in likelihood.top]
        return TokenLogprob(index, self._token_bytes(token), likelihood.logprob, tuple(top))


ItemBody = Text | Thinking | ToolStart | ToolInput | ToolEnd


class TextAssembler:
    """Turns the tokens of one generation into item bodies.

    The result is a pure function of the token sequence. A new attempt that feeds the ids of the
    items emitted so far, and drops the returned items, reaches the state in which the earlier
    attempt emitted the last of them. Therefore a token yields at most one item (two would share
    their ids, and a crash between them would lose the second), and each item carries all ids since
    the item before. If one token completes several items, such as a whole tool call, the further
    ones are emitted with the following tokens.

    Args:
        detokenizer: A fresh one.
        parser: A fresh one.
        job_id: Source of the ids of tool calls, so that each attempt gives them the same ids.
        opened: Text at the end of the prompt that is the beginning of the answer.
        is_single: Whether the answer ends after its first tool call.
        tracker: A fresh one if the client requests log probabilities.
        echoed: Text that is emitted with the first token, without being parsed.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        parser: AnswerParser,
        *,
        job_id: str = "",
        opened: str = "",
        is_single: bool = False,
        tracker: LogprobTracker | None = None,
        echoed: str = "",
    ) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._call_prefix = f"toolu_{job_id.removeprefix('job-')}"
        self._is_single = is_single
        self._ids: list[int] = []
        self._ready: deque[Part] = deque()
        self._emitted: dict[Section, list[str]] = {section: [] for section in Section}
        self._calls: list[EmittedCall] = []
        self._order: list[OutputRun] = []
        #: Arguments of the call that is open.
        self._arguments: list[str] = []
        self._tracker = tracker
        if tracker is not None:
            tracker.skip(opened)
        if echoed or (tracker is not None and tracker.keeps_all):
            # The echo belongs to no generated token, so the tracker skips it.
            scored = () if tracker is None else tracker.recorded_prompt()
            self._ready.append(TextPiece(Section.TEXT, echoed, logprobs=scored))
        self._take(opened)
        self._reasoning = ReasoningCount(parser)

    @property
    def stop_sequence(self) -> str | None:
        """The stop sequence that ended the answer; no token may be fed after it."""
        return self._parser.stop_sequence

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete; no token may be fed after it."""
        return self.stop_sequence is not None or self._has_single_call

    @property
    def text(self) -> str:
        """The answer emitted so far."""
        return "".join(self._emitted[Section.TEXT])

    @property
    def thinking(self) -> str:
        """The reasoning emitted so far."""
        return "".join(self._emitted[Section.THINKING])

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens of reasoning, including those of its tags."""
        return self._reasoning.tokens

    @property
    def calls(self) -> tuple[EmittedCall, ...]:
        """The tool calls emitted so far; the last one may be incomplete."""
        return tuple(
            call if call.is_complete else replace(call, arguments="".join(self._arguments))
            for call in self._calls
        )

    @property
    def order(self) -> tuple[OutputRun, ...]:
        """The order of text, reasoning and calls emitted so far."""
        return tuple(self._order)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log probabilities of the answer emitted so far; ``None`` if not requested."""
        return None if self._tracker is None else tuple(self._tracker.emitted)

    def feed(self, token: int, likelihood: TokenLikelihood | None = None) -> ItemBody | None:
        """Feed the next token and return the next item, if one is ready."""
        assert not self.is_over, "tokens after the end do not belong to the answer"
        self._ids.append(token)
        text = self._detokenizer.feed(token)
        if self._tracker is not None:
            self._tracker.add(token, likelihood, text)
        self._take(text)
        self._reasoning.record_token()
        return self._pop() if self._ready else None

    def score_echo(self, tokens: Sequence[int], likelihoods: Sequence[TokenLikelihood]) -> None:
        """Add the log probabilities of the echoed prompt, before the first token is fed.

        Args:
            tokens: The prompt.
            likelihoods: Of each of its tokens but the first.
        """
        if self._tracker is None or not self._ready:
            return
        echo = self._ready[0]
        assert isinstance(echo, TextPiece), "the echo is first"
        self._ready[0] = replace(echo, logprobs=self._tracker.prompt(tokens, likelihoods))

    def score_end(self, token: int, likelihood: TokenLikelihood | None) -> None:
        """Add the log probabilities of the token that ends the answer, if the prompt is scored."""
        if self._tracker is not None and self._tracker.keeps_all:
            self._tracker.add(token, likelihood, "")

    def flush(self, *, cut: bool = False) -> tuple[ItemBody, ...]:
        """Return the remaining items at the end of the generation.

        Args:
            cut: Whether a limit, a cancellation or a failure cut the answer short.
        """
        if self.stop_sequence is None:
            text = self._detokenizer.flush()
            if self._tracker is not None:
                self._tracker.close(text)
            self._take(text)
            self._queue(self._parser.flush(cut=cut))
            if self._tracker is not None and (rest := self._tracker.take_rest()):
                self._append(TextPiece(Section.TEXT, "", logprobs=rest))
        pieces = []
        while self._ready and not self._has_single_call:
            pieces.append(self._pop())
        return tuple(pieces)

    @property
    def _has_single_call(self) -> bool:
        return self._is_single and bool(self._calls) and self._calls[0].is_complete

    def _take(self, text: str) -> None:
        if text:
            self._queue(self._parser.feed(text))

    def _queue(self, parts: Iterable[Part]) -> None:
        for part in parts if self._tracker is None else map(self._with_logprobs, parts):
            self._append(part)

    def _append(self, part: Part) -> None:
        joined = _joined(self._ready[-1], part) if self._ready else None
        if joined is not None:
            self._ready[-1] = joined
        else:
            self._ready.append(part)

    def _with_logprobs(self, part: Part) -> Part:
        """Return a part of the output with the log probabilities of its tokens."""
        assert self._tracker is not None, "no log probabilities are requested"
        if not isinstance(part, TextPiece):
            self._tracker.discard()
            return part
        end = part.start + len(part.text)
        if part.section is Section.THINKING:
            self._tracker.discard(end)
            return part
        return replace(part, logprobs=self._tracker.take(part.start, end))

    def _pending_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Return log probabilities of the next item's tokens that a later item will emit."""
        if self._tracker is None:
            return ()
        ready = [part.logprobs for part in self._ready if isinstance(part, TextPiece)]
        return self._tracker.pending(len(self._ids), ready)

    def _pop(self) -> ItemBody:
        part, later = self._ready.popleft(), self._pending_logprobs()
        ids, self._ids = tuple(self._ids), []
        match part:
            case TextPiece(Section.TEXT, text):
                self._emitted[Section.TEXT].append(text)
                if self._tracker is not None:
                    self._tracker.emitted += part.logprobs
                self._record(OutputRun("text", len(text), len(part.logprobs)))
                return Text(text=text, ids=ids, logprobs=part.logprobs, later=later)
            case TextPiece(section, text):
                self._emitted[section].append(text)
                self._record(OutputRun("thinking", len(text)))
                return Thinking(text=text, ids=ids, later=later)
            case CallOpened(name):
                call = EmittedCall(id=f"{self._call_prefix}_{len(self._calls)}", name=name)
                self._calls.append(call)
                self._record(OutputRun("tool", 1))
                self._arguments = []
                return ToolStart(id=call.id, name=name, ids=ids, later=later)
            case CallInput(fragment):
                self._arguments.append(fragment)
                return ToolInput(fragment=fragment, ids=ids, later=later)
            case CallClosed():
                whole = "".join(self._arguments)
                self._calls[-1] = replace(self._calls[-1], arguments=whole, is_complete=True)
                return ToolEnd(ids=ids, later=later)

    def _record(self, run: OutputRun) -> None:
        if self._order and self._order[-1].kind == run.kind:
            last = self._order.pop()
            run = OutputRun(run.kind, last.length + run.length, last.logprobs + run.logprobs)
        self._order.append(run)


def assembler_for(model: LoadedModel, task: GenerationTask) -> TextAssembler:
    """Return the assembler for the answer to ``task``, before its first token."""
    prompt, tracker = task.prompt, None
    if prompt.logprobs is not None:
        tracker = LogprobTracker(model.token_bytes, task.known, keeps_all=prompt.is_scored)
    return TextAssembler(
        model.detokenizer(),
        model.parser(prompt, task.stop),
        job_id=task.job_id,
        opened=prompt.opened,
        is_single=prompt.single_call,
        tracker=tracker,
        echoed=prompt.echoed,
    )


def _joined(before: Part, part: Part) -> Part | None:
    """Return two consecutive parts as one if they are of one kind, else ``None``."""
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
