"""An agent of LangGraph with a tool answers twice, over one protocol of the service."""

from __future__ import annotations

import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

_MODEL, _KEY = "semantic-demo", "local"


def write_file(text: str) -> str:
    """Write a file and return what it holds then."""
    Path("made.txt").write_text(text)
    return f"The file has {text}."


def main(base_url: str, protocol: str) -> None:
    """Ask twice and print the answers."""
    agent = create_agent(_model(base_url, protocol), [write_file], checkpointer=InMemorySaver())
    for question in ("Write by LangGraph.", "What was written?"):
        given = {"messages": [{"role": "user", "content": question}]}
        state = agent.invoke(given, {"configurable": {"thread_id": "one"}})
        sys.stdout.write(f"{state['messages'][-1].text}\n")


def _model(base_url: str, protocol: str) -> BaseChatModel:
    if protocol == "messages":
        return ChatAnthropic(model=_MODEL, base_url=base_url, api_key=_KEY, max_tokens=200)
    return ChatOpenAI(model=_MODEL, base_url=f"{base_url}/v1", api_key=_KEY)


if __name__ == "__main__":
    main(*sys.argv[1:])
