"""``semantic replay``: compute a recorded answer again and compare the two."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from domain.audit.replay import Replayed, ReplayRefused, Verdict, read_recording
from domain.errors import LogUnavailable, SemanticError
from domain.job.listing import JobFilter
from domain.values import JobId, JobStatus, StreamName
from ops.cli.log.log_options import progress_bar
from ops.cli.options import (
    DataDir,
    Json,
    Model,
    fail,
    operator_settings,
    overrides,
    parse_instant,
)
from ops.cli.output import Columns, echo, print_json, print_pairs, print_rows, print_table
from ops.exit_codes import ExitCode
from ops.liveness.line_child import LineChild
from ops.log.admin.archive import open_as_of
from ops.log.database import database_file, reader_engine
from ops.log.projections.jobs import SqlJobViews
from ops.settings.settings import Settings
from ops.supervisor.parts import child_environment, module_argv

_HASH_CHARS = 12
_FINGERPRINT_CHARS = len("sha256:") + _HASH_CHARS


def print_replayed(result: dict[str, Any]) -> None:
    """Print the replay result of one job."""
    verdict = result["verdict"]
    if verdict == "replayed":
        echo(result["text"])
        return
    if verdict == "refused":
        echo(f"{result['job']} cannot be replayed: {result['message']}", err=True)
        return
    print_pairs(_pairs(result))
    if result["divergence"] is not None:
        echo("")
        _print_divergence(result["divergence"])
    if (parting := result["parting"]) is not None:
        echo(f"\nafter …{_quoted(parting['context'])}")
        rows = [(name, _quoted(parting[name])) for name in ("stored", "replayed")]
        print_table((f"character {parting['chars']}", "text"), rows)


def print_table_of(results: Sequence[dict[str, Any]]) -> None:
    """Print the replay results of many jobs and the number of each kind."""
    columns: Columns = {
        "job": "job",
        "verdict": "verdict",
        "tokens": lambda result: f"{result['tokens']:,}",
        "attempts": lambda result: str(result["attempts"] or ""),
        "took": lambda result: f"{result['took_ms'] / 1000:,.1f} s" if result["took_ms"] else "",
        "note": _note,
    }
    print_rows(results, columns)
    verdicts = [result["verdict"] for result in results]
    counts = [f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)]
    echo(", ".join(counts) or "no completed jobs")


def _pairs(result: dict[str, Any]) -> list[tuple[str, str]]:
    then, now = result["versions_then"], result["versions"]
    libraries = now if then in {None, now} else f"{now}; then {then}"
    pairs = [
        ("job", result["job"]),
        ("verdict", f"{result['verdict']}: {result['message']}"),
        ("token hash", result["token_hash"]),
        ("model", f"{result['model']} {result['fingerprint'][:_FINGERPRINT_CHARS]}"),
        (
            "then",
            f"attempts {result['attempts']}, {result['cached_tokens']:,} prompt tokens cached",
        ),
        ("libraries", libraries),
        ("took", f"{result['took_ms']:,.0f} ms"),
    ]
    return [(name, value) for name, value in pairs if value]


def _print_divergence(divergence: dict[str, Any]) -> None:
    echo(f"after …{_quoted(divergence['context'])}")
    rows = [(name, *_candidate(divergence[name])) for name in ("stored", "replayed")]
    print_table((f"index {divergence['index']}", "id", "text", "log-prob"), rows)
    echo(_gaps(divergence))


def _candidate(candidate: dict[str, Any]) -> tuple[str, str, str]:
    if candidate["id"] is None:
        return "", "the end", _number(candidate["logprob"])
    return str(candidate["id"]), _quoted(candidate["text"]), _number(candidate["logprob"])


def _gaps(divergence: dict[str, Any]) -> str:
    gap, draw_gap = _number(divergence["gap"]), _number(divergence["draw_gap"])
    return f"gap {gap} in log-probability, {draw_gap} in the draw"


def _note(result: dict[str, Any]) -> str:
    if result["verdict"] == "refused":
        return f"{result['reason']}: {result['message']}"
    if result["divergence"] is None:
        return "" if result["verdict"] == "same" else str(result["message"])
    return f"at index {result['divergence']['index']}, {_gaps(result['divergence'])}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6f}"


def _quoted(text: str) -> str:
    return jsonlib.dumps(text, ensure_ascii=False)


#: Jobs read at a time.
_PAGE = 500
#: Time for the process to end after its last line or after SIGTERM, in seconds.
_END_S = 30.0

Jobs = Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="The jobs' ids.")]


def replay(
    jobs: Jobs = None,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the stored answer, token by token.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All completed jobs, oldest first.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", help="With --all: 10m, 2h, 3d, or ISO 8601, UTC.")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="With --all: so many, spread evenly over the time."),
    ] = None,
    model: Model = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help="Let this model answer, and show where the texts part."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Compute a recorded answer again from the log; needs no service.

    The model, the rendered prompt, the rules and the seed must be those of then; nothing is taken
    from a cache, and nothing is written. Exits with 0 if all tokens are the same, 1 if one is not,
    3 if a job cannot be replayed, with the reason. Without --verify, prints the text.

    With --against, another model answers the same request; exits with 0 also if the texts part.
    """
    if against is not None and (verify or model is not None):
        fail("--against excludes --verify and --model", ExitCode.USAGE)
    settings = operator_settings(overrides(data_dir=data_dir, model=against or model))
    _require_log(settings)
    if bool(jobs) == everything:
        fail("name jobs, or give --all", ExitCode.USAGE)
    asked = list(jobs or ()) or _completed(settings, since, sample)
    results: list[dict[str, Any]] = []
    command = {"verify": verify, "only": model is not None, "against": against is not None}
    refused = [] if everything else _refused(settings, asked)
    for result in refused or _replayed(settings, asked, command):
        results.append(result)
        if not json and not everything:
            print_replayed(result)
    if json:
        print_json(results if everything else results[-1])
    elif everything:
        print_table_of(results)
    verdicts = {result["verdict"] for result in results}
    for verdict, code in (("diverged", ExitCode.FAILED), ("refused", ExitCode.REFUSED)):
        if verdict in verdicts:
            raise typer.Exit(int(code))


def _require_log(settings: Settings) -> None:
    file = database_file(settings.log_url)
    if file is not None and not file.exists():
        fail(f"there is no event log at {file}", ExitCode.REFUSED)


def _refused(settings: Settings, jobs: Sequence[str]) -> list[dict[str, Any]]:
    """Return why none of the jobs can be replayed; empty where one may be: it needs the model."""
    found: list[dict[str, Any]] = []
    try:
        with open_as_of(settings.log_url) as log:
            for job in map(JobId, jobs):
                try:
                    read_recording(job, log.load(StreamName(job)))
                except ReplayRefused as error:
                    verdict, text, reason = Verdict.REFUSED, error.message, error.reason
                    one = Replayed(job=job, verdict=verdict, message=text, reason=reason)
                    found.append(asdict(one))
                else:
                    return []
    except SemanticError as error:
        fail(error.message, ExitCode.REFUSED)
    return found


def _completed(settings: Settings, since: str | None, sample: int | None) -> list[str]:
    """Return the completed jobs, oldest first, or an even sample of them."""
    instant = parse_instant(since) if since else None
    wanted = JobFilter(status=JobStatus.COMPLETED, since=instant)
    engine = reader_engine(settings.log_url)
    found: list[str] = []
    try:
        views, last, has_more = SqlJobViews(engine), None, True
        while has_more:
            page = views.page(wanted, limit=_PAGE, before=last)
            found += [view.id for view in page.jobs]
            last, has_more = (page.jobs[-1].id if page.jobs else None), page.has_more
    except LogUnavailable as error:
        fail(error.message, ExitCode.REFUSED)
    finally:
        engine.dispose()
    return spread(found[::-1], sample)


def spread(jobs: Sequence[str], count: int | None) -> list[str]:
    """Return an even sample of ``jobs`` with the first and the last."""
    if count is None or count >= len(jobs):
        return list(jobs)
    if count == 1:
        return [jobs[-1]]
    last = len(jobs) - 1
    return [jobs[round(place * last / (count - 1))] for place in range(count)]


def _replayed(
    settings: Settings, jobs: Sequence[str], command: dict[str, bool]
) -> Iterator[dict[str, Any]]:
    """Yield the result of each job, with a progress bar on a terminal."""
    if not jobs:
        return
    ended = 0
    with progress_bar("replaying") as progress, _child(settings) as child:
        child.send(jsonlib.dumps({"jobs": list(jobs), **command}))
        child.end_requests()
        for line in child.replies:
            line_data = jsonlib.loads(line)
            if line_data.pop("kind") == "progress":
                if progress is not None and len(jobs) == 1:
                    progress(line_data["done"], line_data["total"])
                continue
            ended += 1
            if progress is not None and len(jobs) > 1:
                progress(ended, len(jobs))
            yield line_data
        code = child.process.wait(_END_S)
    if code or ended < len(jobs):
        fail(f"the replay ended early, with exit code {code}", ExitCode.REFUSED)


@contextmanager
def _child(settings: Settings) -> Iterator[LineChild]:
    """Start ``worker.replay`` as a process; ``ops`` must not import ``worker``."""
    # A model that is not on this machine is refused, not downloaded.
    environment = child_environment(os.environ, settings, {"HF_HUB_OFFLINE": "1"})
    argv = module_argv("worker.replay")
    with LineChild(argv, env=environment, own_session=False) as child:
        try:
            yield child
        except KeyboardInterrupt:
            raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
        finally:
            if child.process.poll() is None:
                child.process.terminate()
