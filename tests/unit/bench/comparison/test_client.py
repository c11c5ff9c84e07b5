"""The client of all servers counts pieces of text, and no field without one."""

from __future__ import annotations

import socket
from threading import Thread

from bench.client import chat_body, stream_together

CHUNKS = (
    '{"choices":[{"delta":{"role":"assistant","content":null}}]}',
    '{"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
    '{"choices":[{"delta":{"content":"A "}}]}',
    '{"choices": [{"delta": {"content": "fox."}}]}',
    '{"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":9}}',
)


def _answer(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65_536)
        body = "".join(f"data: {chunk}\n\n" for chunk in CHUNKS)
        connection.sendall(f"HTTP/1.1 200 OK\r\n\r\n{body}data: [DONE]\n\n".encode())


def test_a_null_is_no_first_text() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=_answer, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (trace,) = stream_together(url, [chat_body("m", [], 9)])
        thread.join()
    assert trace.text == "A fox."
    assert len(trace.tokens) == 2
    assert trace.completion_tokens == 3
