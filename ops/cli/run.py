"""``semantic run``: send a prompt, print the streamed answer."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

import typer

from ops.cli.client import follow, service
from ops.cli.exit_codes import ExitCode
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import echo, echo_data
from ops.clients.http_client import HttpClient

Prompt = Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same answer.")]
System = Annotated[str | None, typer.Option("--system", help="Instructions for the model.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Use")(run)


def run(
    prompt: Prompt,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    system: System = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Print the answer, or only the job's id.")
    ] = True,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send a prompt to the service and print the streamed answer; Ctrl-C cancels the job.

    With --json, prints the finished job instead, its answer under "output"; with --no-wait too, the
    job as it was accepted.
    """
    body = _job_body(
        prompt, max_tokens=max_tokens, temperature=temperature, seed=seed, system=system
    )
    with service(data_dir) as client:
        if not wait:
            accepted = client.ask("POST", "/v1/jobs", json=body)
            echo(jsonlib.dumps(accepted, indent=2, ensure_ascii=False) if json else accepted["id"])
            return
        job = _run_job(client, body, show=not json)
    if json:
        echo(jsonlib.dumps(job, indent=2, ensure_ascii=False))
    if job["status"] != "completed":
        message = (job.get("error") or {}).get("message") or f"the job was {job['status']}"
        fail(message, ExitCode.FAILED)


def _job_body(prompt: str, **options: object) -> dict[str, Any]:
    """Return the body of ``POST /v1/jobs``; a prompt of ``-`` is read from stdin."""
    text = sys.stdin.read() if prompt == "-" else prompt
    return {"prompt": text} | {name: value for name, value in options.items() if value is not None}


def _run_job(client: HttpClient, body: dict[str, Any], *, show: bool) -> dict[str, Any]:
    """Submit a job, print its text and return its end; an interrupt cancels the job."""
    job_id = client.ask("POST", "/v1/jobs", json=body)["id"]
    ended = False
    try:
        for item in follow(client, job_id):
            if show and item["kind"] == "text":
                echo_data(item["text"])
        ended = True
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
    finally:
        if not ended:
            client.ask("POST", f"/v1/jobs/{job_id}/cancel")
        if show:
            echo_data("\n")
    job: dict[str, Any] = client.ask("GET", f"/v1/jobs/{job_id}")
    return job
