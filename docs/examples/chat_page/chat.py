"""A chat page in the browser, by Gradio, over the OpenAI routes of the service.

Start the service (``make demo``); ``docs/examples/chat-page.md`` has the set-up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import gradio
from openai import OpenAI

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"


def main() -> None:
    """Serve the page on http://127.0.0.1:7860, or on GRADIO_SERVER_PORT."""
    base_url = os.environ.get("SERVICE_URL", URL)
    key = os.environ.get("SEMANTIC_API_KEY", "local")
    client = OpenAI(base_url=f"{base_url}/v1", api_key=key, timeout=600)

    def answer(question: str, history: list[dict[str, Any]]) -> Iterator[str]:
        """Yield the answer so far, with each piece that the service sends."""
        turns: Any = [{"role": one["role"], "content": text_of(one["content"])} for one in history]
        turns.append({"role": "user", "content": question})
        stream = client.chat.completions.create(
            model="semantic-demo", messages=turns, max_tokens=400, stream=True
        )
        text = ""
        for piece in stream:
            for choice in piece.choices:
                text += choice.delta.content or ""
                yield text

    gradio.ChatInterface(answer, title="semantic").launch(server_name="127.0.0.1")


def text_of(content: Any) -> str:  # noqa: ANN401 - a text, or parts of one
    """Return the text of a message as Gradio keeps it."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


if __name__ == "__main__":
    main()
