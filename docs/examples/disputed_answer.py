"""Audit of a disputed answer: find it in the log, compute it again, gather the evidence.

Start the service (``make demo``), then run, with the words that are in dispute:

    .venv/bin/python docs/examples/disputed_answer.py --agent customer-17 --claim "…" --out dossier

Exits with 0 if the log has the answer, word for word, and every check holds; else with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import httpx

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"


def main() -> None:
    """Find the job of the answer, check it, and write what an auditor needs into a directory."""
    options = _options()
    if options.out.exists():
        raise SystemExit(f"{options.out} exists; name a new directory")
    key = os.environ.get("SEMANTIC_API_KEY")
    headers = {"x-api-key": key} if key else {}
    with httpx.Client(
        base_url=os.environ.get("SERVICE_URL", URL), headers=headers, timeout=60
    ) as http:
        answers = list(answers_of(http, options.agent))
    if not answers:
        raise SystemExit(f"the log has no answer to {options.agent}")
    job = nearest(answers, options.claim)
    logged: str = job["output"]["text"]
    is_claimed = logged == options.claim
    checks = check(job["id"], options.out)
    (options.out / "answer.txt").write_text(logged, encoding="utf-8")
    print(f"job       {job['id']} of {job['agent_id']}, {job['finished_at'][:19]}Z")
    print(f"claimed   {options.claim}")
    print(f"logged    {logged}")
    print(
        f"claim     {'true, word for word' if is_claimed else 'false: no answer has these words'}"
    )
    for name, result in checks.items():
        print(f"{name:<9} {result}")
    print(f"dossier   {', '.join(sorted(one.name for one in options.out.iterdir()))}")
    holds = all(result.startswith(("same", "verifies")) for result in checks.values())
    raise SystemExit(0 if is_claimed and holds else 1)


def answers_of(http: httpx.Client, agent: str) -> Iterator[dict[str, Any]]:
    """Yield the completed jobs of an agent with their answers, newest first."""
    query = {"agent_id": agent, "status": "completed", "limit": "100"}
    while True:
        page = http.get("/v1/jobs", params=query).raise_for_status().json()
        for job in page["data"]:
            yield http.get(job["links"]["self"]).raise_for_status().json()
        if not page["has_more"]:
            return
        query["before"] = page["next_before"]


def nearest(jobs: list[dict[str, Any]], claim: str) -> dict[str, Any]:
    """Return the job whose answer is most like the claim."""
    return max(jobs, key=lambda job: SequenceMatcher(None, job["output"]["text"], claim).ratio())


def check(job: str, out: Path) -> dict[str, str]:
    """Compute the answer again, verify the log, and write the evidence.

    Returns:
        A line for each check.
    """
    out.mkdir(parents=True)
    story = _semantic(["jobs", "show", job, "--story"])
    (out / "story.txt").write_text(story, encoding="utf-8")
    _semantic(["log", "export", "--stream", job, "--out", str(out / "events.jsonl")])
    replayed = json.loads(_semantic(["replay", job, "--verify", "--json"]))
    _write(out / "replay.json", replayed)
    log = json.loads(_semantic(["log", "verify", "--json"]))
    _write(out / "log.json", log)
    head = json.loads(_semantic(["log", "head", "--sign"]))
    _write(out / "head.json", head)
    return {
        "replay": f"{replayed['verdict']}: {replayed['message']}",
        "log": "verifies, and its head is signed" if log["ok"] else f"is damaged: {log}",
    }


def _semantic(words: list[str]) -> str:
    """Return the output of a command; a check that fails has an output too."""
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("semantic", path=here)
    if program is None:
        raise SystemExit("semantic is not installed beside this Python")
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout and done.returncode != 0:
        raise SystemExit(f"failed: semantic {' '.join(words)}")
    return done.stdout


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Audit of a disputed answer.")
    parser.add_argument("--agent", required=True, help="the agent_id of the requests")
    parser.add_argument("--claim", required=True, help="the words in dispute")
    parser.add_argument("--out", type=Path, required=True, help="a new directory for the evidence")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}\n{error.response.text}") from error
    except httpx.TransportError as error:
        raise SystemExit(f"no answer: {error}; does the service run? make demo") from error
