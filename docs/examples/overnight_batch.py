"""An overnight batch: submitted once, its end received as a signed webhook, its answers in a file.

The service keeps all state. Killed at any moment and started again, this script finds its batch by
its name and continues; the service may be killed too.

Start the service so that webhooks may go to this machine, then run the script:

    SEMANTIC_WEBHOOKS__ALLOW_HOSTS='["127.0.0.1"]' make demo
    export WEBHOOK_SECRET=$(.venv/bin/semantic webhooks ls --secret)
    .venv/bin/python docs/examples/overnight_batch.py --name monday
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from standardwebhooks import Webhook, WebhookVerificationError

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"
COUNTRIES = ("France", "Italy", "Spain", "Japan", "Norway", "Greece", "Egypt", "Portugal")
ENDED = {"completed", "failed", "expired", "cancelled"}
#: Time between two looks at the batch while no message comes, in seconds.
LOOK_S = 2.0
#: How long a message of a batch that has ended may take, in seconds.
MESSAGE_S = 15.0
#: While the service restarts, requests are repeated for this time, in seconds.
AWAY_S = 120.0


def main() -> None:
    """Find or submit the batch, wait for its end, and write its answers."""
    options = _options()
    secret = os.environ.get("WEBHOOK_SECRET", "")
    if not secret:
        raise SystemExit(
            "set WEBHOOK_SECRET: export WEBHOOK_SECRET=$(semantic webhooks ls --secret)"
        )
    key = os.environ.get("SEMANTIC_API_KEY")
    headers = {"x-api-key": key} if key else {}
    with (
        httpx.Client(
            base_url=os.environ.get("SERVICE_URL", URL), headers=headers, timeout=60
        ) as http,
        _receiver(options.port, secret) as messages,
    ):
        batch = find(http, options.name)
        if batch is None:
            batch = submit(http, options)
            print(f"{batch['id']} submitted: {options.lines} lines", flush=True)
        else:
            print(f"{batch['id']} found, {batch['status']}", flush=True)
        batch = wait(http, batch, messages)
        print(f"{batch['id']} {batch['status']}, {save(http, batch, options.out)}")


def find(http: httpx.Client, name: str) -> dict[str, Any] | None:
    """Return the newest batch of a name, if the service has one."""
    batches: list[dict[str, Any]] = _get(http, "/v1/batches?limit=100")["data"]
    return next((one for one in batches if (one["metadata"] or {}).get("name") == name), None)


def submit(http: httpx.Client, options: argparse.Namespace) -> dict[str, Any]:
    """Upload the lines and make a batch of them.

    A kill between the two leaves a file that no batch uses; the next run uploads it again.
    """
    lines = "".join(json.dumps(line(number)) + "\n" for number in range(options.lines))
    upload = {"file": ("lines.jsonl", lines.encode())}
    file = http.post("/v1/files", data={"purpose": "batch"}, files=upload).raise_for_status()
    body = {
        "input_file_id": file.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"name": options.name},
        "webhook": {"url": f"http://127.0.0.1:{options.port}/batch"},
    }
    made: dict[str, Any] = http.post("/v1/batches", json=body).raise_for_status().json()
    return made


def line(number: int) -> dict[str, Any]:
    """Return one request of the batch."""
    question = f"What is the capital of {COUNTRIES[number % len(COUNTRIES)]}?"
    return {
        "custom_id": f"line-{number + 1}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "semantic-demo",
            "max_tokens": 24,
            "temperature": 0,
            "messages": [{"role": "user", "content": question}],
        },
    }


def wait(
    http: httpx.Client, batch: dict[str, Any], messages: queue.Queue[dict[str, Any]]
) -> dict[str, Any]:
    """Wait for the message of the batch; the looks between only show the progress.

    A batch can end while this script is dead. Its message is then sent again later, or was
    received by the run before, so the status of the batch decides, not the message.
    """
    done, give_up_at = -1, None
    while True:
        try:
            message = messages.get(timeout=LOOK_S)
        except queue.Empty:
            pass
        else:
            if message["data"]["id"] == batch["id"]:
                print(f"webhook {message['type']}, signature verified", flush=True)
                return _get(http, f"/v1/batches/{batch['id']}")
        batch = _get(http, f"/v1/batches/{batch['id']}")
        counts = batch["request_counts"]
        if counts["completed"] != done:
            done = counts["completed"]
            print(f"{done} of {counts['total']} lines answered", flush=True)
        if batch["status"] in ENDED:
            give_up_at = give_up_at or time.monotonic() + MESSAGE_S
            if time.monotonic() > give_up_at:
                print("no webhook came; see: semantic webhooks ls", flush=True)
                return batch


def save(http: httpx.Client, batch: dict[str, Any], out: Path) -> str:
    """Write the answers, one JSON line each; the file is there whole or not at all."""
    if batch["output_file_id"] is None:
        return "without an answer"
    content = http.get(f"/v1/files/{batch['output_file_id']}/content").raise_for_status().content
    part = out.with_name(out.name + ".part")
    part.write_bytes(content)
    part.replace(out)
    return f"{len(content.splitlines())} answers in {out}"


def verified(secret: str, headers: dict[str, str], body: bytes) -> dict[str, Any] | None:
    """Return a message if its signature is that of a secret, and it is of the last five minutes."""
    for one in secret.split():
        with suppress(WebhookVerificationError, ValueError):
            message: dict[str, Any] = Webhook(one).verify(body, headers)
            return message
    return None


@contextmanager
def _receiver(port: int, secret: str) -> Iterator[queue.Queue[dict[str, Any]]]:
    """Listen for messages on a loopback port; a message without a valid signature gets a 403."""
    received: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            message = verified(secret, headers, body)
            self.send_response(204 if message is not None else 403)
            self.end_headers()
            if message is not None:
                received.put(message)

        def log_message(self, *_: object) -> None:
            """Print no line for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()


def _get(http: httpx.Client, path: str) -> dict[str, Any]:
    """Return what the service has at a path; waits for a service that restarts."""
    give_up_at = time.monotonic() + AWAY_S
    while True:
        try:
            reply = http.get(path)
            if reply.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                found: dict[str, Any] = reply.raise_for_status().json()
                return found
        except httpx.TransportError as error:
            if time.monotonic() > give_up_at:
                raise SystemExit(f"no service at {http.base_url}: {error}") from error
        if time.monotonic() > give_up_at:
            raise SystemExit(f"the service at {http.base_url} is not ready; see: semantic status")
        time.sleep(LOOK_S)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An overnight batch that survives crashes.")
    parser.add_argument("--name", default="night", help="one name, one batch")
    parser.add_argument("--lines", type=int, default=200, help="requests of a new batch")
    parser.add_argument("--port", type=int, default=9700, help="loopback port for the webhook")
    parser.add_argument("--out", type=Path, default=Path("night.jsonl"), help="the answers")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}\n{error.response.text}") from error
    except httpx.TransportError as error:
        raise SystemExit(f"no answer: {error}; does the service run? make demo") from error
