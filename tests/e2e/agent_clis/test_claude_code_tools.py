"""The real Claude Code CLI runs the calls that our events tell of, and says so in a way we read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from api.dialects.anthropic.encode import AnthropicEncoder, MessageForm
from api.dialects.anthropic.parse import parse
from api.generation import RequestDefaults
from api.http.sse import encode
from domain.chat.items import (
    Body,
    Finished,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.request import ChatRequest
from domain.values import JobId, StopReason, Usage
from tests.support.clients.claude_code import ask
from tests.support.fakes.time import SequentialIds

_THOUGHT = "I make it, and look for another."
_ARGUMENTS = (
    '{"description": "make", "command": "echo made > made.txt # </tool_call>"}',
    '{"command": "cat no_such_file"}',
)


def _call(job: str, number: int) -> list[Body]:
    text = _ARGUMENTS[number]
    return [
        ToolStart(id=f"toolu_{job}_{number}", name="Bash"),
        *(ToolInput(fragment=text[n : n + 5], ids=(1,)) for n in range(0, len(text), 5)),
        ToolEnd(),
    ]


def _answer(turn: int, chat: ChatRequest) -> bytes:
    job = f"{turn:032x}"
    bodies: list[Body] = [Started(prompt_tokens=900, cached_tokens=100)]
    if turn == 0:
        bodies += [Thinking(text=_THOUGHT, ids=(1,)), *_call(job, 0), *_call(job, 1)]
    else:
        bodies.append(Text(text="All done.", ids=(1,)))
    usage = Usage(prompt_tokens=900, cached_tokens=100, completion_tokens=9)
    bodies.append(Finished(stop_reason=StopReason.END_TURN, usage=usage))
    encoder = AnthropicEncoder(
        MessageForm(model=chat.model, thinking="omitted"),
        job_id=JobId(f"job-{job}"),
        request_id="req_1",
    )
    parts = encoder.open()
    for n, body in enumerate(bodies):
        parts += encoder.item(StreamItem(n=n, attempt=1, body=body))
    return encode(parts)


@contextmanager
def _server() -> Iterator[tuple[str, list[ChatRequest]]]:
    asked: list[ChatRequest] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            chat = parse(body, {}, RequestDefaults(ids=SequentialIds(), max_tokens=1)).chat
            asked.append(chat)
            said = _answer(len(asked) - 1, chat)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_parallel_calls_are_run_and_come_back_with_their_results(
    claude_binary: Path, tmp_path: Path
) -> None:
    with _server() as (url, asked):
        service: Any = SimpleNamespace(base_url=url)
        done = ask(
            claude_binary, service, tmp_path, "-p", "Make the file.", "--tools", "Bash",
            "--allowedTools", "Bash", "--output-format", "json",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["result"] == "All done."
    assert (tmp_path / "work" / "made.txt").read_text() == "made\n"
    first, second = asked
    # Everything up to the calls is the same, so the second prompt begins with the first.
    before = len(first.messages)
    assert second.messages[:before] == first.messages
    assert second.tools == first.tools
    said, *results = second.messages[before:]
    # It was never shown the reasoning, which its signature brought back.
    assert said.reasoning == _THOUGHT
    assert [call.id for call in said.tool_calls] == [f"toolu_{0:032x}_{n}" for n in (0, 1)]
    assert [dict(call.arguments) for call in said.tool_calls] == [*map(json.loads, _ARGUMENTS)]
    by_id = {turn.tool_call_id: turn.content for turn in results if turn.role == "tool"}
    assert set(by_id) == {call.id for call in said.tool_calls}
    assert "no_such_file" in by_id[said.tool_calls[1].id]
    assert by_id[said.tool_calls[1].id].startswith("Error")
