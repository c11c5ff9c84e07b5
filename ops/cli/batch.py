"""``semantic batch``: submit, follow and read batches."""

from __future__ import annotations

import json as jsonlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from ops.cli.client import ask, service
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import Columns, DataOutput, echo, print_json, print_pairs, print_rows
from ops.clients.http_client import HttpClient, Unreachable, UploadBody
from ops.exit_codes import ExitCode

BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the results here; else to stdout.")
]

MESSAGES: Final = "/v1/messages/batches"
FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
_OPENAI_PREFIX: Final = "batch_"
#: Poll interval of a batch, and longest restart of the service to wait for, in seconds.
POLL_S: Final = 0.5
AWAY_S_MAX: Final = 120.0
#: Time limit of the reply to an upload, in seconds.
UPLOAD_S: Final = 600.0
_PIECE_BYTES: Final = 65_536
_ENDED: Final = frozenset({"ended", "completed", "failed", "expired", "cancelled"})


def submit(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="JSON lines: custom_id with params (Anthropic), or with method, url and body.",
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it has ended.")] = True,
    out: OutOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Submit a file of requests and show the progress; Ctrl-C leaves the batch running.

    With --out, writes the results there when the batch has ended.
    """
    with service(data_dir) as client:
        batch = _submit(client, file)
        if not json:
            echo(batch["id"])
        if wait:
            batch = _follow(client, batch)
            if out is not None:
                _write_results(client, batch, out)
    if json:
        print_json(batch, ascii_only=False)
    elif wait:
        print_pairs(_pairs(batch)[1:])
    if wait and _status(batch) == "failed":
        fail(_faults(batch), ExitCode.FAILED)


def list_batches(
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most rows.")] = 20,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List batches of both kinds, newest first."""
    with service(data_dir) as client:
        found = [
            batch
            for path in (MESSAGES, BATCHES)
            for batch in client.ask("GET", path, params={"limit": str(limit)})["data"]
        ]
    # Ids of both kinds begin with the instant of their creation.
    found.sort(key=lambda batch: str(batch["id"]).rpartition("_")[2], reverse=True)
    if json:
        print_json(found[:limit], ascii_only=False)
        return
    columns: Columns = {
        "batch": "id",
        "status": _status,
        "done": lambda batch: "{}/{}".format(*_progress(batch)),
        "created": _created,
    }
    print_rows(found[:limit], columns)


def show(
    batch: BatchArgument,
    results: Annotated[
        bool, typer.Option("--results", help="Its results instead, one JSON object per line.")
    ] = False,
    out: OutOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show one batch, or the results of one that has ended."""
    with service(data_dir) as client:
        found = client.ask("GET", _path(batch))
        if not results and out is None:
            _print(found, as_json=json)
        elif _status(found) in _ENDED:
            _write_results(client, found, out)
        else:
            fail(f"batch {batch} is {_status(found)}; it has no results yet", ExitCode.FAILED)


def cancel(batch: BatchArgument, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a batch; finished lines keep their results."""
    _print(ask("POST", f"{_path(batch)}/cancel", data_dir), as_json=json)


def _submit(client: HttpClient, file: Path) -> Any:  # noqa: ANN401 - JSON
    first = next((line for line in _lines(file) if line.strip()), "")
    try:
        line = jsonlib.loads(first)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        fail(f"{file}: the first line is no JSON object", ExitCode.FAILED)
    if "params" in line:
        lines = ",".join(text for text in _lines(file) if text.strip())
        body = f'{{"requests":[{lines}]}}'.encode()
        upload = UploadBody(content_type="application/json", size_bytes=len(body), pieces=[body])
        return client.ask("POST", MESSAGES, upload=upload, timeout_s=UPLOAD_S)
    with file.open("rb") as content:
        kept = client.ask("POST", FILES, upload=_form(file.name, content), timeout_s=UPLOAD_S)
    body_of = {
        "input_file_id": kept["id"],
        "endpoint": str(line.get("url")),
        "completion_window": "24h",
    }
    return client.ask("POST", BATCHES, json=body_of)


def _form(name: str, file: BinaryIO) -> UploadBody:
    """Return a file as the multipart form that uploads it for a batch."""
    boundary = secrets.token_hex(16)
    # As the HTML standard escapes names in forms.
    quoted = name.replace("\n", "%0A").replace("\r", "%0D").replace('"', "%22")
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode("utf-8", "replace")
    tail = f"\r\n--{boundary}--\r\n".encode()
    size_bytes = len(head) + os.fstat(file.fileno()).st_size + len(tail)
    content = iter(partial(file.read, _PIECE_BYTES), b"")
    return UploadBody(
        content_type=f"multipart/form-data; boundary={boundary}",
        size_bytes=size_bytes,
        pieces=chain([head], content, [tail]),
    )


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        yield from lines


def _follow(client: HttpClient, batch: dict[str, Any]) -> dict[str, Any]:
    """Return the ended batch; a restart of the service is waited for."""
    away_since: float | None = None
    with _bar() as report:
        while _status(batch) not in _ENDED:
            report(*_progress(batch))
            try:
                time.sleep(POLL_S)
                batch = client.ask("GET", _path(batch["id"]))
                away_since = None
            except Unreachable:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_S_MAX:
                    raise
            except KeyboardInterrupt:
                echo(f"the batch goes on: semantic batch show {batch['id']}", err=True)
                raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
        report(*_progress(batch))
    return batch


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows finished and total lines; silent in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from ops.cli.log.log_options import progress_bar

    with progress_bar("answering") as report:
        yield lambda done, total: report(done, total) if report is not None else None


def _write_results(client: HttpClient, batch: dict[str, Any], out: Path | None) -> None:
    sink = out.open("wb") if out is not None else DataOutput()
    try:
        for path in _result_paths(batch):
            with client.pieces(path, timeout_s=UPLOAD_S) as pieces:
                for piece in pieces:
                    sink.write(piece)
    finally:
        sink.close()


def _result_paths(batch: dict[str, Any]) -> list[str]:
    if not batch["id"].startswith(_OPENAI_PREFIX):
        return [f"{_path(batch['id'])}/results"]
    files = (batch["output_file_id"], batch["error_file_id"])
    return [f"{FILES}/{file_id}/content" for file_id in files if file_id]


def _path(batch_id: str) -> str:
    return f"{BATCHES if batch_id.startswith(_OPENAI_PREFIX) else MESSAGES}/{batch_id}"


def _status(batch: dict[str, Any]) -> str:
    return str(batch.get("processing_status") or batch["status"])


def _progress(batch: dict[str, Any]) -> tuple[int, int]:
    """Return the number of lines with a result and of all lines."""
    if "progress" in batch:
        counts = batch["progress"]
        total = sum(counts.values())
        return total - counts["processing"], total
    counts = batch["request_counts"]
    done = counts["completed"] + counts["failed"]
    return (counts["total"] if _status(batch) in _ENDED else done), counts["total"]


def _created(batch: dict[str, Any]) -> str:
    created = batch["created_at"]
    if isinstance(created, int):
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return str(created)[:19]


def _faults(batch: dict[str, Any]) -> str:
    faults = (batch.get("errors") or {}).get("data", [])
    lines = [f"line {fault['line']}: {fault['message']}" for fault in faults]
    return "\n  ".join(["the lines are no batch:", *lines])


def _pairs(batch: dict[str, Any]) -> list[tuple[str, str]]:
    counts = batch.get("progress") or batch["request_counts"]
    lines = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return [("batch", batch["id"]), ("status", _status(batch)), ("lines", lines or "none")]


def _print(batch: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(batch, ascii_only=False)
        return
    print_pairs([*_pairs(batch), ("created", _created(batch))])
    if _status(batch) == "failed":
        echo(_faults(batch))


#: The commands of the group, by name.
COMMANDS: Final = {"submit": submit, "ls": list_batches, "show": show, "cancel": cancel}
