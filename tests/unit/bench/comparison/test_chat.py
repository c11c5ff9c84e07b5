from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.comparison import chat

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 4},
}
MESSAGES = [{"role": "user", "content": "hi"}]


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


@contextmanager
def answering(*chunks: dict[str, Any], status: int = 200) -> Iterator[int]:
    """Serve one stream to everyone; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_answer_is_put_together_with_its_usage() -> None:
    with answering(said(""), said("Good "), said("day"), {"choices": [], "usage": USAGE}) as port:
        reply = chat.ask(port, "m", MESSAGES, 5)

    assert reply.text == "Good day"
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (9, 4, 2)
    assert 0 < reply.first_s <= reply.total_s


def test_all_that_ask_together_are_answered() -> None:
    with answering(said("Good day"), {"usage": USAGE}) as port:
        replies = chat.ask_together(port, "m", [MESSAGES, MESSAGES, MESSAGES], 5)

    assert [reply.text for reply in replies] == ["Good day"] * 3


@pytest.mark.parametrize(
    ("chunks", "status"),
    [([said("Good day")], 200), ([{"error": "broken"}], 200), ([], 503)],
    ids=["without usage", "error in the stream", "error status"],
)
def test_broken_answer_is_an_error(chunks: list[dict[str, Any]], status: int) -> None:
    with answering(*chunks, status=status) as port, pytest.raises(RuntimeError):
        chat.ask(port, "m", MESSAGES, 5)


def test_client_leaves_after_the_pieces_it_wanted() -> None:
    with answering(said("a"), said("b"), said("c"), {"usage": USAGE}) as port:
        chat.leave_after(port, "m", MESSAGES, max_tokens=5, pieces=2)

        with pytest.raises(RuntimeError, match="3 pieces"):
            chat.leave_after(port, "m", MESSAGES, max_tokens=5, pieces=4)
