"""Replays recorded answers in a process of its own: ``python -m worker.replay``.

``semantic replay`` starts it. It reads one JSON object from standard input, ``{"jobs": [id, …],
"verify": bool, "only": bool}`` (``only``: use no model but the configured one), and writes one JSON
object a line: ``{"kind": "progress", …}``, and ``{"kind": "replayed", …}`` for each job in turn
with the fields of ``domain.job.replay.Replayed``. It only reads the log, takes no lock and writes
no block, so a service may run at the same time.
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
from domain.log.codec import decode_recorded
from domain.usecases.recorded_answers import LoggedAnswers
from domain.values import JobId, StreamName, WorkerId
from ops.adapters.data_dir.permissions import (
    create_private_files,
    use_own_temporary_directory,
)
from ops.adapters.log_admin.archive import AsOfLog, open_as_of
from ops.exit_codes import ExitCode
from ops.logs import configure_logging
from ops.models.hub_cache import cached_ids
from ops.models.registry import first_model, model_registry
from ops.settings import Settings, load_settings
from worker.engine.mlx.model.loader import ModelSource
from worker.engine.mlx.rows.running_sequences import piece_tokens
from worker.engine.mlx.solo import ModelHandles
from worker.recording.worker_event_recorder import library_versions
from worker.replay.comparison import Pieces, replay

#: Seconds between two lines of progress.
PROGRESS_S = 0.1

Write = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Replays jobs of one log, one after the other, on the thread that created it.

    Attributes:
        log: The log, read-only.
        models: Loads the models.
        pieces: How prompts are split for prefill.
        write: Receives the output lines.
    """

    log: AsOfLog
    models: ModelHandles
    pieces: Pieces
    write: Write

    def replay(self, job: JobId, *, verify: bool) -> Replayed:
        """Compute one answer again, and write and return the result."""
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
        settings: Names the log and the model.
        command: The object from standard input.
        write: Receives the output lines.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    model = first_model(settings)
    source = ModelSource(
        id=model.source,
        name=model.name,
        context_length=model.context_length,
        sampling=model.sampling,
        revision=model.revision,
        digest_cache=settings.data_dir / "digests.json",
    )
    pieces = Pieces(step_tokens=piece_tokens(None))
    with open_as_of(settings.log_url) as log:
        answers = LoggedAnswers(log=log, payloads=log)
        registry = model_registry(settings, cached_ids())
        with closing(ModelHandles(source, registry, answers, only=command["only"])) as models:
            replayer = Replayer(log=log, models=models, pieces=pieces, write=write)
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
