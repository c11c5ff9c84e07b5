"""Stands in for a part of the service: ``python -m tests.support.processes.stand_in ROLE``.

Each role records its start and its SIGTERM in ``$STAND_IN_DIR/journal``, and beats. A file
``$STAND_IN_DIR/ROLE.exit`` makes it exit at once with the code in it; ``ROLE.deaf`` makes it
ignore SIGTERM; ``ROLE.child`` makes it leave a child process behind. ``broker.held`` keeps the
broker from answering, ``api.unready`` the service from becoming ready, and ``standby.held`` a part
that waits from having its imports. A part that waits records ``standby`` and starts once it is
activated. ``$STAND_IN_ORPHAN_S`` is how long a part outlives its supervisor.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ops.liveness.child import STANDBY_ENV, take_heartbeat, wait_for_activation, watch_lifeline
from tests.support.polling import pause

_BEAT_S = 0.1
_ROLE = sys.argv[1]
_DIR = Path(os.environ["STAND_IN_DIR"])


def note(word: str) -> None:
    with (_DIR / "journal").open("a") as journal:
        journal.write(f"{_ROLE} {word} {os.getpid()}\n")


def on_term(_number: int, _frame: object) -> None:
    note("term")
    if not (_DIR / f"{_ROLE}.deaf").exists():
        os._exit(0)


def play_broker() -> None:
    while (_DIR / "broker.held").exists():
        pause(_BEAT_S, reason="the test holds the broker")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    (Path(os.environ["SEMANTIC_DATA_DIR"]) / "broker.url").write_text(url)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"+PONG\r\n")


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        models = {"data": [{"name": "stand-in", "context_length": 512}], "follow": []}
        body = json.dumps(models if self.path == "/admin/models" else {}).encode()
        note("probe")
        self.send_response(503 if (_DIR / "api.unready").exists() else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        pass


def play_api() -> None:
    port = int(os.environ["SEMANTIC_SERVER__PORT"])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Api).serve_forever()


def beat_for_ever() -> None:
    beat = take_heartbeat()
    while True:
        beat()
        pause(_BEAT_S, reason="the pace of the heart")


def main() -> None:
    if STANDBY_ENV in os.environ:
        note("standby")
        while (_DIR / "standby.held").exists():
            pause(_BEAT_S, reason="the test holds the imports")
    if not wait_for_activation():
        return
    watch_lifeline(lambda: os._exit(9), orphan_s=float(os.environ.get("STAND_IN_ORPHAN_S", "0")))
    threading.Thread(target=beat_for_ever, daemon=True).start()
    signal.signal(signal.SIGTERM, on_term)
    note("start")
    code = _DIR / f"{_ROLE}.exit"
    if code.exists():
        sys.stderr.write(f"the {_ROLE} cannot work\n")
        os._exit(int(code.read_text()))
    if (_DIR / f"{_ROLE}.child").exists():
        child = subprocess.Popen(["sleep", "600"])
        (_DIR / f"{_ROLE}.child").write_text(str(child.pid))
    sys.stdout.write(f"{_ROLE} top pad {os.environ.get('MALLOC_TOP_PAD_')}\n")
    sys.stdout.flush()
    if _ROLE == "worker":
        sys.stdout.write(f"url {os.environ['SEMANTIC_REDIS__URL']}\n")
        sys.stdout.flush()
        threading.Event().wait()
    {"broker": play_broker, "api": play_api}[_ROLE]()


if __name__ == "__main__":
    main()
