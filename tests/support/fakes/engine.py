"""An engine that follows a script: real threads and text handling, a fake model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from domain.job.ports import ItemSink
from domain.ports import Clock
from domain.values import ModelCard, WaitingFor
from ops.clock import SystemClock
from tests.support.polling import pause, scaled
from worker.engine.engine import BatchEngine
from worker.engine.output.channel_parser import ChannelFormat
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import ToolFormat
from worker.engine.ports import (
    Admission,
    Admitted,
    Fault,
    Finish,
    LoadedModel,
    RenderedPrompt,
    StepResult,
    TokenLikelihood,
)

#: The answer to a prompt that the script does not contain.
DEFAULT_ANSWER = "Hello from the script."
#: The only message that the scripted chat template refuses.
REFUSED = "<refused>"
_END = 0x11_0000
_HELD_STEP_S = 0.002


class _Characters:
    """Token ids are code points."""

    def feed(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""

    def copied(self) -> _Characters:
        return self


class ScriptedRunner:
    """``ModelRunner`` whose answer depends on the last message alone.

    Attributes:
        answers: Answer by last message.
        gate: While cleared, every step waits.
        is_held: Every step ends without a token.
        channel_format: How the scripted model frames its messages, if it does.
        burst: Tokens of each sequence in a step, as far as its answer goes.
        step_error: Raised by the next step, once.
        fault: Ends the sequences of the next step.
        shared_error: Error of the next step's pass over several prompts, once.
        poison: A step that computes one of these tokens of an answer fails.
        stepped: Set after each step.
        gap_max_s: Longest pause of a stream, in seconds, once it was set.
    """

    def __init__(self, answers: Mapping[str, str] | None = None, *, context: int = 1000) -> None:
        self.answers = dict(answers or {})
        self.context = context
        self.channel_format: ChannelFormat | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.is_held = False
        self.burst = 1
        self.step_error: BaseException | None = None
        self.fault: Exception | None = None
        self.shared_error: Exception | None = None
        self.poison: frozenset[int] | set[int] = frozenset()
        self.load_error: Exception | None = None
        self.stepped = threading.Event()
        self.closed = False
        self.gap_max_s: float | None = None
        self.admissions: list[Admission] = []
        self._rows: dict[int, list[Any]] = {}
        self._tops: dict[int, int] = {}
        self._unscored: dict[int, Admission] = {}
        self._next_uid = 0

    @property
    def running(self) -> int:
        return len(self._rows)

    def load(self) -> LoadedModel:
        if self.load_error is not None:
            raise self.load_error
        card = ModelCard(
            id="scripted",
            fingerprint="sha256:" + "0" * 64,
            context_length=self.context,
            description="Speaks from a script.",
            created_at="2026-01-01T00:00:00Z",
        )
        return LoadedModel(
            card=card,
            think_tags=ThinkTags("<think>", "</think>"),
            render=lambda request, *_: _render(request),
            opens_thinking=lambda prompt: "".join(map(chr, prompt[-7:])) == "<think>",
            detokenizer=_Characters,
            tool_format=ToolFormat(start="<tool_call>", end="</tool_call>"),
            token_bytes=lambda token: b"" if token >= _END else chr(token).encode(),
            channel_format=self.channel_format,
        )

    def set_gap(self, gap_max_s: float) -> None:
        self.gap_max_s = gap_max_s

    def must_wait(self, admission: Admission) -> WaitingFor | None:
        del admission
        return None

    def insert(self, admission: Admission) -> Admitted | None:
        if admission.sampling.seed > 2**63 - 1:
            raise ValueError("seed out of range")
        prompt_length = len(admission.tokens) - admission.first_index
        prompt = "".join(map(chr, admission.tokens[:prompt_length])).removesuffix("<think>")
        answer = self.answers.get(prompt, DEFAULT_ANSWER)
        self.admissions.append(admission)
        self._next_uid += 1
        self._rows[self._next_uid] = [
            answer,
            admission.first_index,
            admission.first_index + admission.max_new_tokens,
        ]
        if admission.logprobs is not None:
            self._tops[self._next_uid] = admission.logprobs
        if admission.is_scored:
            self._unscored[self._next_uid] = admission
        return Admitted(self._next_uid)

    def background(self) -> bool:
        return False

    def step(self) -> StepResult:
        if self.is_held:
            pause(_HELD_STEP_S, reason="a step takes time")
            return StepResult([])
        assert self.gate.wait(scaled(60)), "the test never opened the gate"
        if self.step_error is not None:
            error, self.step_error = self.step_error, None
            raise error
        if self.fault is not None:
            return StepResult([], faults=[Fault(uid, self.fault) for uid in self._rows])
        if self.shared_error is not None:
            faults = [Fault(uid, self.shared_error, is_shared=True) for uid in self._rows]
            self.shared_error = None
            self._rows.clear()
            return StepResult([], faults=faults)
        self._read_poison()
        tokens: list[tuple[int, int, Finish | None]] = []
        likelihoods: dict[int, list[TokenLikelihood]] = {}
        for uid in list(self._rows):
            for _ in range(self.burst):
                place, top = self._rows[uid][1], self._tops.get(uid)
                token, finish = self._next(uid)
                tokens.append((uid, token, finish))
                if top is not None:
                    likelihoods.setdefault(uid, []).append(likelihood_of(token, place, top))
                if finish is not None:
                    break
        prompts = {uid: _scored(one) for uid, one in self._unscored.items()}
        self._unscored.clear()
        self.stepped.set()
        return StepResult(tokens, likelihoods=likelihoods, prompts=prompts)

    def _read_poison(self) -> None:
        for answer, index, _ in self._rows.values():
            read = answer[max(0, index - 1) : index - 1 + self.burst]
            if self.poison & set(map(ord, read)):
                raise RuntimeError("the model does not like this token")

    def _next(self, uid: int) -> tuple[int, Finish | None]:
        answer, index, limit = self._rows[uid]
        if index >= len(answer):
            del self._rows[uid]
            return _END, Finish.END
        self._rows[uid][1] = index + 1
        if index + 1 >= limit:
            del self._rows[uid]
            return ord(answer[index]), Finish.LENGTH
        return ord(answer[index]), None

    def remove(self, uid: int) -> None:
        self._rows.pop(uid, None)

    def reset(self) -> None:
        self._rows.clear()

    def close(self) -> None:
        self.closed = True


def _scored(admission: Admission) -> list[TokenLikelihood]:
    pairs = enumerate(admission.tokens[1:], 1)
    return [likelihood_of(token, place, admission.logprobs or 0) for place, token in pairs]


class FakeEngine(BatchEngine):
    """``InferenceEngine`` for tests of everything around it; started on construction.

    Args:
        sink: Where items go.
        answers: Answer by last message; each character is a token.
        context: Context length of the scripted model.
        max_batch_size: Generations at once.
        clock: For timings.
        channel_format: How the scripted model frames its messages, if it does.
        on_device_failure: Called before the engine dies of an error of the device.
        runner: In place of one that follows ``answers``.
    """

    def __init__(
        self,
        sink: ItemSink,
        answers: Mapping[str, str] | None = None,
        *,
        context: int = 1000,
        max_batch_size: int = 8,
        clock: Clock | None = None,
        channel_format: ChannelFormat | None = None,
        on_device_failure: Callable[[], None] = lambda: None,
        runner: ScriptedRunner | None = None,
    ) -> None:
        self.runner = runner or ScriptedRunner(answers, context=context)
        self.runner.channel_format = channel_format
        factory: Callable[[], ScriptedRunner] = lambda: self.runner  # noqa: E731 - typed on purpose
        super().__init__(
            runner_factory=factory,
            sink=sink,
            clock=clock or SystemClock(),
            max_batch_size=max_batch_size,
            on_device_failure=on_device_failure,
        )
        self.start()

    def pause(self) -> None:
        """Produce no further token until ``resume``: a step does not return, so none is stopped."""
        self.runner.gate.clear()

    def hold(self) -> None:
        """Produce no further token until ``resume``; between two steps a generation can be stopped.

        With ``pause`` a cancellation waits for ``resume``, and the answer may end before it.
        """
        self.runner.is_held = True

    def resume(self) -> None:
        """Go on."""
        self.runner.is_held = False
        self.runner.gate.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.resume()
        self.close(0)


def _render(request: ChatRequest) -> RenderedPrompt:
    if request.raw is not None:
        text = request.raw.text or text_of(request.raw.ids)
        return RenderedPrompt(tuple(map(ord, text)), echoed=text if request.raw.is_echoed else "")
    text = request.messages[-1].content
    if text == REFUSED:
        raise InvalidRequest("the script refuses this message", field="messages")
    tokens = tuple(map(ord, text + ("<think>" if request.thinking else "")))
    # The scripted template writes its system prompt as the first character.
    starts = (1,) if request.messages[0].role == "system" else ()
    return RenderedPrompt(tokens, message_starts=starts)


def likelihood_of(token: int, index: int, top: int) -> TokenLikelihood:
    """Return the scripted logprob of a token at a position; it falls with the position."""
    first = -(1 + index) / 64
    return TokenLikelihood(first, tuple((token + n, first - n) for n in range(top)))


def text_of(ids: Sequence[int]) -> str:
    """Return the text of scripted token ids."""
    return "".join(map(chr, ids))
