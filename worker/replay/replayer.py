"""Compute recorded answers again, in a process of its own: ``python -m worker.replay``.

``semantic replay`` starts it. It reads one JSON object from standard input, ``{"jobs": [id, …],
"verify": bool, "only": bool}`` (no model but that of the settings may be looked at), and writes one
JSON object a line: ``{"kind": "progress", …}`` and, for each job in turn, ``{"kind": "replayed",
…}`` with the fields of ``domain.job.replay.Replayed``. The log is only read, no lock is
taken and no block is written, so a service may run beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from domain.errors import SemanticError
from domain.events.worker import WorkerStarted
from domain.job.replay import Refusal, Replayed, ReplayRefused, Verdict, read_recording
from domain.log.codec import decode_event
from domain.usecases.recorded_answers import LoggedAnswers
from domain.values import JobId, StreamName, WorkerId
from ops.adapters.log_admin.as_of import AsOfLog, open_as_of
from ops.exit_codes import ExitCode
from ops.logs import configure_logging
from ops.settings import Settings, load_settings
from worker.engine.mlx.model.loader import ModelSource
from worker.engine.mlx.model.model_handles import ModelHandles
from worker.replay.comparison import Pieces, replay
from worker.worker_event_recorder import library_versions

#: Seconds between two lines of progress.
PROGRESS_S = 0.1

Write = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Replays jobs of one log, one after the other, on the thread that made it.

    Attributes:
        log: Where they stand.
        shelf: Where the models are.
        pieces: How prompts are read.
        write: Takes what is to be told.
    """

    log: AsOfLog
    models: ModelHandles
    pieces: Pieces
    write: Write

    def replay(self, job: JobId, *, verify: bool) -> Replayed:
        """Compute one answer again, and tell what came of it."""
        try:
            done = self._replay(job, verify=verify)
        except ReplayRefused as error:
            done = Replayed(
                job=job, verdict=Verdict.REFUSED, message=error.message, reason=error.reason
            )
        except SemanticError as error:
            done = Replayed(
                job=job,
                verdict=Verdict.REFUSED,
                message=error.message,
                reason=Refusal.UNREADABLE,
            )
        self.write({"kind": "replayed"} | asdict(done))
        return done

    def _replay(self, job: JobId, *, verify: bool) -> Replayed:
        recording = read_recording(job, self.log.load(StreamName(job)))
        weights = self.models.load(recording.model, recording.fingerprint)
        done = replay(
            recording,
            weights,
            self.log,
            pieces=self.pieces,
            verify=verify,
            on_progress=_Progress(job, self.write),
        )
        versions_then = self._versions_of(recording.worker)
        return replace(done, versions=library_versions(), versions_then=versions_then)

    def _versions_of(self, worker: WorkerId) -> str | None:
        """Return the libraries with which an answer was computed."""
        for recorded in self.log.load(StreamName(worker)):
            event = decode_event(recorded.type, recorded.schema_version, recorded.data)
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
    """Replay what was asked for.

    Raises:
        LogUnavailable: There is no log.
    """
    source = ModelSource(
        id=settings.model.id,
        name=settings.model.name,
        context_length=settings.model.context_length,
        digest_cache=settings.data_dir / "digests.json",
    )
    pieces = Pieces(step_tokens=settings.engine.prefill_step_tokens, cuts=settings.engine.reuse)
    with open_as_of(settings.log_url) as log:
        answers = LoggedAnswers(log=log, payloads=log)
        with closing(ModelHandles(source, answers, only=command["only"])) as models:
            replayer = Replayer(log=log, models=models, pieces=pieces, write=write)
            for job in command["jobs"]:
                replayer.replay(JobId(job), verify=command["verify"])


def main() -> int:
    """Replay what standard input asks for."""
    settings = load_settings()
    logger = configure_logging("replay", level="warning", format=settings.log.format)
    output = os.fdopen(
        os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="backslashreplace"
    )
    # What a library prints must not stand between our lines.
    sys.stdout = sys.stderr
    try:
        run(settings, json.load(sys.stdin), partial(_write_line, output))
    except SemanticError as error:
        logger.error("cannot_replay", why=error.message)  # noqa: TRY400 - the line says it all
        return int(ExitCode.FAILED)
    except (KeyboardInterrupt, BrokenPipeError):
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


def _write_line(output: Any, line: dict[str, Any]) -> None:  # noqa: ANN401 - a text file
    output.write(json.dumps(line) + "\n")
    output.flush()
