"""Computes a recorded answer again and compares the two, token by token."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.errors import PayloadDamaged, PayloadMissing, SemanticError
from domain.job.replay import (
    Candidate,
    Recording,
    Refusal,
    ReplayDivergence,
    Replayed,
    ReplayRefused,
    Verdict,
    check_prompt,
    read_answer,
)
from domain.kv.hashing import hash_ids
from domain.log.ports import PayloadStore
from domain.values import Digest, StopReason
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.solo import SoloRun
from worker.engine.ports import LoadedModel
from worker.engine.preparation import prepare
from worker.engine.text_assembler import TextAssembler, assembler_for

#: Characters of the answer that are shown before a divergence.
CONTEXT_CHARS = 80
#: Tokens that are decoded for these characters.
_CONTEXT_TOKENS = 60
#: Tokens between two reports of progress.
REPORT_EVERY_TOKENS = 8
#: Stop reasons by a limit count as equal: which limit applies depends on memory, not on the model.
_LIMITS = frozenset({StopReason.MAX_TOKENS, StopReason.CONTEXT_WINDOW})

#: Receives the phase (``prefill`` or ``decode``), tokens done, and tokens in all.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How a worker with the present settings splits a prompt for prefill; see ``SoloRun``.

    Attributes:
        step_tokens: Most prompt tokens in one piece.
    """

    step_tokens: int


@dataclass(frozen=True, slots=True)
class _ReplayedAnswer:
    """The result of a replay that reached the answer's end or a divergence."""

    ids: tuple[int, ...]
    text: str
    reason: StopReason | None = None
    stop_sequence: str | None = None
    divergence: ReplayDivergence | None = None


def replay(
    recording: Recording,
    weights: LoadedWeights,
    payloads: PayloadStore,
    *,
    pieces: Pieces,
    verify: bool,
    on_progress: OnProgress = lambda *_: None,
) -> Replayed:
    """Compute an answer again.

    Args:
        recording: The job's record in the log.
        weights: The model that gave the answer, on the thread that loaded it.
        payloads: Stores request and answer.
        pieces: How the prompt is split for prefill.
        verify: Whether to stop at the first difference; otherwise the whole answer is computed.
        on_progress: Receives the progress.

    Raises:
        ReplayRefused: The answer cannot be computed, or its payloads are gone.
    """
    began_s = time.monotonic()
    request = ChatRequest.from_bytes(_payload(payloads, recording.request, "request"))
    stored = read_answer(recording, _payload(payloads, recording.output, "answer"))
    try:
        prompt = prepare(request, weights.model, recording.encoding)
        check_prompt(recording, prompt.tokens)
        run = _ReplayRun(
            recording, request, prompt, stored if verify else None, weights, pieces, on_progress
        )
        replayed = run.run()
    except SemanticError as error:
        raise ReplayRefused(Refusal.CANNOT_COMPUTE, error.message) from error
    verdict, message = (
        _verdict(recording, stored, replayed)
        if verify
        else (Verdict.REPLAYED, f"replayed {len(replayed.ids):,} tokens")
    )
    return Replayed(
        job=recording.job,
        verdict=verdict,
        message=message,
        model=recording.model,
        fingerprint=recording.fingerprint,
        tokens=len(replayed.ids),
        token_hash=hash_ids(replayed.ids),
        attempts=recording.attempts,
        cached_tokens=recording.cached_tokens,
        divergence=replayed.divergence,
        text=replayed.text,
        took_ms=round(1000 * (time.monotonic() - began_s), 3),
    )


def _payload(payloads: PayloadStore, digest: Digest, what: str) -> bytes:
    try:
        return payloads.get(digest)
    except PayloadMissing as error:
        message = f"the {what} is no longer stored: it was erased"
        raise ReplayRefused(Refusal.PAYLOAD_GONE, message) from error
    except PayloadDamaged as error:
        message = f"the stored {what} does not match the log: its digest is not {digest}"
        raise ReplayRefused(Refusal.PAYLOAD_CHANGED, message) from error


def _verdict(
    recording: Recording, stored: StoredAnswer, replayed: _ReplayedAnswer
) -> tuple[Verdict, str]:
    if replayed.divergence is not None:
        return Verdict.DIVERGED, f"the token at index {replayed.divergence.index:,} is another"
    if hash_ids(replayed.ids) != recording.token_hash:
        return Verdict.DIVERGED, "the hash of the tokens is another; the answer has no tokens"
    endings = (
        (replayed.reason, replayed.stop_sequence),
        (recording.stop_reason, recording.stop_sequence),
    )
    if endings[0] != endings[1] and not {replayed.reason, recording.stop_reason} <= _LIMITS:
        return Verdict.DIVERGED, f"the same tokens end by {replayed.reason}, not {endings[1][0]}"
    if replayed.text != stored.text:
        return Verdict.DIVERGED, "the same tokens decode to another text"
    return Verdict.SAME, f"the same {len(replayed.ids):,} tokens"


class _ReplayRun:
    """One answer in progress. Its ends are those of ``worker.engine.emitter``."""

    def __init__(
        self,
        recording: Recording,
        request: ChatRequest,
        prompt: PreparedPrompt,
        stored: StoredAnswer | None,
        weights: LoadedWeights,
        pieces: Pieces,
        on_progress: OnProgress,
    ) -> None:
        self._recording = recording
        self._expected = None if stored is None else stored.token_ids
        self._weights = weights
        self._on_progress = on_progress
        self._prompt = replace(
            prompt,
            sampling=recording.sampling,
            max_tokens=_limit(recording, request, prompt),
            thinking_limit=recording.thinking_limit,
        )
        self._assembler = _assembler(recording, request, self._prompt, weights.model)
        self._solo = SoloRun(
            weights,
            recording.sampling,
            step_tokens=pieces.step_tokens,
            constraint=weights.model.constraint(self._prompt),
        )
        self._ids: list[int] = []

    def run(self) -> _ReplayedAnswer:
        """Draw tokens up to the end of the answer or the first that differs."""
        if not self._prompt.max_tokens:
            return _ReplayedAnswer((), "", StopReason.MAX_TOKENS, None, None)
        tokens = self._solo.tokens(self._prompt.tokens, self._on_prefill)
        with closing(tokens):
            for index, token in enumerate(tokens):
                if self._is_another(index, token):
                    return self._answer(divergence=self._divergence(index, token))
                if token in self._weights.end_ids:
                    return self._answer(StopReason.END_TURN)
                self._ids.append(token)
                self._assembler.feed(token)
                if self._assembler.is_over:
                    is_stop = self._assembler.stop_sequence is not None
                    return self._answer(
                        StopReason.STOP_SEQUENCE if is_stop else StopReason.END_TURN
                    )
                if len(self._ids) >= self._prompt.max_tokens:
                    return self._answer(StopReason.MAX_TOKENS)
                if index % REPORT_EVERY_TOKENS == 0:
                    self._on_progress("decode", index + 1, self._recording.completion_tokens)
        msg = "the token iterator never ends by itself"
        raise AssertionError(msg)

    def _on_prefill(self, done: int, total: int) -> None:
        self._on_progress("prefill", done, total)

    def _is_another(self, index: int, token: int) -> bool:
        if self._expected is None:
            return False
        if index < len(self._expected):
            return token != self._expected[index]
        return token not in self._weights.end_ids

    def _answer(
        self, reason: StopReason | None = None, divergence: ReplayDivergence | None = None
    ) -> _ReplayedAnswer:
        if reason is not None:
            cut = reason not in {StopReason.END_TURN, StopReason.STOP_SEQUENCE}
            self._assembler.flush(cut=cut)
        assembler = self._assembler
        return _ReplayedAnswer(
            tuple(self._ids), assembler.text, reason, assembler.stop_sequence, divergence
        )

    def _divergence(self, index: int, token: int) -> ReplayDivergence:
        assert self._expected is not None, "only a verification diverges"
        ended = index >= len(self._expected)
        # The log has no end token id, so the most likely end token stands for it.
        others = sorted(self._weights.end_ids) if ended else [self._expected[index]]
        logprob, *stored = self._solo.logprobs(index, [token, *others])
        score, *scores = self._solo.scores(index, [token, *others])
        best = max(range(len(others)), key=lambda place: scores[place])
        return ReplayDivergence(
            index=index,
            stored=Candidate(
                id=None if ended else others[best],
                text="" if ended else self._text([others[best]]),
                logprob=_rounded(stored[best]),
            ),
            replayed=Candidate(id=token, text=self._text([token]), logprob=_rounded(logprob)),
            gap=_rounded(logprob - stored[best]),
            draw_gap=_rounded(score - scores[best]),
            context=self._text(self._ids[-_CONTEXT_TOKENS:])[-CONTEXT_CHARS:],
        )

    def _text(self, ids: list[int]) -> str:
        detokenizer = self._weights.model.detokenizer()
        return "".join(map(detokenizer.feed, ids)) + detokenizer.flush()


def _limit(recording: Recording, request: ChatRequest, prompt: PreparedPrompt) -> int:
    """Return the token limit; where memory ended the recorded answer, its own length."""
    if recording.stop_reason is StopReason.CONTEXT_WINDOW:
        return recording.completion_tokens
    return min(request.max_tokens, max(prompt.max_tokens, recording.completion_tokens))


def _assembler(
    recording: Recording, request: ChatRequest, prompt: PreparedPrompt, model: LoadedModel
) -> TextAssembler:
    task = GenerationTask(
        job_id=recording.job,
        attempt=recording.attempts,
        prompt=prompt,
        emitted=(),
        first_item=1,
        stop=request.stop,
    )
    return assembler_for(model, task)


def _rounded(value: float) -> float | None:
    """Return a number that JSON can represent; a token with probability 0 has none."""
    return round(value, 6) if math.isfinite(value) else None
