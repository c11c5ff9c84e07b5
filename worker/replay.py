"""Computes a recorded answer again and compares the two, token by token."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from domain.audit.recorded_answers import LoggedAnswers
from domain.audit.replay import (
    Candidate,
    Parting,
    Recording,
    Refusal,
    ReplayDivergence,
    Replayed,
    ReplayRefused,
    Verdict,
    check_prompt,
    parting_of,
    read_answer,
    read_recording,
)
from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.errors import PayloadDamaged, PayloadMissing, SemanticError
from domain.events.worker import WorkerStarted
from domain.kv.hashing import hash_ids
from domain.log.codec import decode_recorded
from domain.log.ports import PayloadStore
from domain.values import Digest, JobId, StopReason, StreamName, WorkerId
from ops.data_dir.permissions import (
    create_private_files,
    use_own_temporary_directory,
)
from ops.exit_codes import ExitCode
from ops.log.admin.archive import AsOfLog, open_as_of
from ops.models.hub_cache import cached_ids
from ops.models.registry import first_model, model_registry
from ops.observe.logs import configure_logging
from ops.settings.settings import Settings, load_settings
from worker.engine.mlx.model.loader import DIGESTS, LoadedWeights
from worker.engine.mlx.rows.running_sequences import piece_tokens
from worker.engine.mlx.solo import ModelHandles, SoloRun
from worker.engine.ports import LoadedModel
from worker.engine.preparation import prepare
from worker.engine.text_assembler import TextAssembler, assembler_for
from worker.recording.worker_event_recorder import library_versions

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
    step_tokens: int,
    verify: bool = False,
    is_against: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Replayed:
    """Compute an answer again, or let another model answer the same request.

    Args:
        weights: The model that answers, on the thread that loaded it.
        step_tokens: Most prompt tokens in one piece of prefill; see ``SoloRun``.
        verify: Whether to stop at the first difference; otherwise the whole answer is computed.
        is_against: Whether ``weights`` are of any model, whose text may part from the stored one.

    Raises:
        ReplayRefused: The answer cannot be computed, or its payloads are gone.
    """
    began_s = time.monotonic()
    request = ChatRequest.from_bytes(_payload(payloads, recording.request, "request"))
    stored = read_answer(recording, _payload(payloads, recording.completed.output, "answer"))
    rules, card = recording, weights.model.card
    try:
        if is_against:
            prompt = prepare(request, weights.model)
            # Its own defaults, and the caller's values over them.
            started = replace(
                recording.started, sampling=prompt.sampling, thinking_limit=prompt.thinking_limit
            )
            rules = replace(recording, started=started)
        else:
            prompt = prepare(request, weights.model, recording.started.encoding)
            check_prompt(recording, prompt.tokens)
        expected = stored if verify else None
        run = _ReplayRun(rules, request, prompt, expected, weights, step_tokens, on_progress)
        answer = run.run()
    except SemanticError as error:
        raise ReplayRefused(Refusal.CANNOT_COMPUTE, error.message) from error
    parting = parting_of(stored.text, answer.text) if is_against else None
    verdict, message = (
        _verdict_against(card.id, parting) if is_against else _verdict(recording, expected, answer)
    )
    return Replayed(
        job=recording.job,
        verdict=verdict,
        message=message,
        model=card.id if is_against else recording.started.model,
        fingerprint=card.fingerprint if is_against else recording.started.fingerprint,
        tokens=len(answer.ids),
        token_hash=hash_ids(answer.ids),
        attempts=recording.started.attempt,
        cached_tokens=recording.completed.usage.cached_tokens,
        divergence=answer.divergence,
        parting=parting,
        text=answer.text,
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
    recording: Recording, stored: StoredAnswer | None, replayed: _ReplayedAnswer
) -> tuple[Verdict, str]:
    if stored is None:
        return Verdict.REPLAYED, f"replayed {len(replayed.ids):,} tokens"
    if replayed.divergence is not None:
        return Verdict.DIVERGED, f"the token at index {replayed.divergence.index:,} is another"
    if hash_ids(replayed.ids) != recording.completed.token_hash:
        return Verdict.DIVERGED, "the hash of the tokens is another; the answer has no tokens"
    endings = (
        (replayed.reason, replayed.stop_sequence),
        (recording.completed.stop_reason, recording.completed.stop_sequence),
    )
    if (
        endings[0] != endings[1]
        and not {replayed.reason, recording.completed.stop_reason} <= _LIMITS
    ):
        return Verdict.DIVERGED, f"the same tokens end by {replayed.reason}, not {endings[1][0]}"
    if replayed.text != stored.text:
        return Verdict.DIVERGED, "the same tokens decode to another text"
    return Verdict.SAME, f"the same {len(replayed.ids):,} tokens"


def _verdict_against(model: str, parting: Parting | None) -> tuple[Verdict, str]:
    if parting is None:
        return Verdict.SAME, "the same text"
    return Verdict.PARTED, f"the text of {model} is the same for {parting.chars:,} characters"


class _ReplayRun:
    """One answer in progress. Its ends are those of ``worker.engine.emitter``."""

    def __init__(
        self,
        recording: Recording,
        request: ChatRequest,
        prompt: PreparedPrompt,
        stored: StoredAnswer | None,
        weights: LoadedWeights,
        step_tokens: int,
        on_progress: OnProgress,
    ) -> None:
        self._recording = recording
        self._expected = None if stored is None else stored.token_ids
        self._weights = weights
        self._on_progress = on_progress
        self._prompt = replace(
            prompt,
            sampling=recording.started.sampling,
            max_tokens=_limit(recording, request, prompt),
            thinking_limit=recording.started.thinking_limit,
        )
        self._assembler = _assembler(recording, request, self._prompt, weights.model)
        self._solo = SoloRun(
            weights,
            recording.started.sampling,
            step_tokens=step_tokens,
            constraint=weights.model.constraint(self._prompt),
        )
        self._ids: list[int] = []

    def run(self) -> _ReplayedAnswer:
        """Draw tokens up to the end of the answer or the first that differs."""
        if not self._prompt.max_tokens:
            return _ReplayedAnswer((), "", StopReason.MAX_TOKENS, None, None)
        tokens = self._solo.tokens(self._prompt.tokens, partial(self._on_progress, "prefill"))
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
                    self._on_progress(
                        "decode", index + 1, self._recording.completed.usage.completion_tokens
                    )
        raise AssertionError("the token iterator never ends by itself")

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
    if recording.completed.stop_reason is StopReason.CONTEXT_WINDOW:
        return recording.completed.usage.completion_tokens
    return min(
        request.max_tokens, max(prompt.max_tokens, recording.completed.usage.completion_tokens)
    )


def _assembler(
    recording: Recording, request: ChatRequest, prompt: PreparedPrompt, model: LoadedModel
) -> TextAssembler:
    task = GenerationTask(
        job_id=recording.job,
        attempt=recording.started.attempt,
        prompt=prompt,
        emitted=(),
        first_item=1,
        stop=request.stop,
    )
    return assembler_for(model, task)


def _rounded(value: float) -> float | None:
    """Return a number that JSON can represent; a token with probability 0 has none."""
    return round(value, 6) if math.isfinite(value) else None


#: Seconds between two lines of progress.
PROGRESS_S = 0.1

Write = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Replays jobs of one log, one after the other, on the thread that created it.

    Attributes:
        step_tokens: Most prompt tokens in one piece of prefill, as of a worker.
        is_against: Whether the configured model answers in place of that of then.
    """

    log: AsOfLog
    models: ModelHandles
    step_tokens: int
    write: Write
    is_against: bool = False

    def replay(self, job: JobId, *, verify: bool) -> Replayed:
        """Compute one answer again, and write and return the result."""
        try:
            done = self._replay(job, verify=verify)
        except (ReplayRefused, SemanticError) as error:
            reason = error.reason if isinstance(error, ReplayRefused) else Refusal.UNREADABLE
            done = Replayed(job=job, verdict=Verdict.REFUSED, message=error.message, reason=reason)
        self.write({"kind": "replayed"} | asdict(done))
        return done

    def _replay(self, job: JobId, *, verify: bool) -> Replayed:
        recording = read_recording(job, self.log.load(StreamName(job)))
        done = replay(
            recording,
            self.models.load_configured()
            if self.is_against
            else self.models.load(recording.started.model, recording.started.fingerprint),
            self.log,
            step_tokens=self.step_tokens,
            verify=verify and not self.is_against,
            is_against=self.is_against,
            on_progress=_Progress(job, self.write),
        )
        versions_then = self._versions_of(recording.started.worker)
        return replace(done, versions=library_versions(), versions_then=versions_then)

    def _versions_of(self, worker: WorkerId) -> str | None:
        """Return the versions of the libraries with which a worker computed."""
        for recorded in self.log.load(StreamName(worker)):
            event = decode_recorded(recorded)
            if isinstance(event, WorkerStarted):
                return event.versions
        return None


class _Progress:
    def __init__(self, job: JobId, write: Write) -> None:
        self._job = job
        self._write = write
        self._written_s = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._written_s >= PROGRESS_S:
            self._written_s = now_s
            line = {"kind": "progress", "job": self._job, "phase": phase}
            self._write(line | {"done": done, "total": total})


def run(settings: Settings, command: dict[str, Any], write: Write) -> None:
    """Replay the jobs of a command.

    Args:
        command: The object from standard input.
    """
    source, digests = first_model(settings), settings.data_dir / DIGESTS
    with open_as_of(settings.log_url) as log:
        answers = LoggedAnswers(log=log, payloads=log)
        registry = model_registry(settings, cached_ids())
        with closing(
            ModelHandles(source, digests, registry, answers, only=command["only"])
        ) as models:
            replayer = Replayer(
                log=log,
                models=models,
                step_tokens=piece_tokens(None),
                write=write,
                is_against=command["against"],
            )
            for job in command["jobs"]:
                replayer.replay(JobId(job), verify=command["verify"])


def main() -> int:
    """Replay the jobs that standard input names; return the exit code."""
    create_private_files()
    settings = load_settings()
    use_own_temporary_directory(settings.data_dir)
    logger = configure_logging("replay", level="warning", format=settings.log.format)
    output = os.fdopen(
        os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="backslashreplace"
    )
    # Libraries that print must not write between the JSON lines.
    sys.stdout = sys.stderr
    try:
        run(settings, json.load(sys.stdin), partial(_write_line, output))
    except SemanticError as error:
        logger.error("cannot_replay", why=error.message)  # noqa: TRY400 - the traceback adds nothing
        return int(ExitCode.FAILED)
    except (KeyboardInterrupt, BrokenPipeError):
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


def _write_line(output: Any, line: dict[str, Any]) -> None:  # noqa: ANN401 - a text file
    output.write(json.dumps(line) + "\n")
    output.flush()


if __name__ == "__main__":
    sys.exit(main())
