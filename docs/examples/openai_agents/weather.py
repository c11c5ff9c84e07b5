"""An agent of the OpenAI Agents SDK on the local model, with a tool in Python.

Start the service (``make demo``); ``docs/examples/openai-agents.md`` has the set-up.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"


@function_tool  # type: ignore[untyped-decorator]  # the SDK is in an environment of its own
def get_weather(location: str) -> str:
    """Get the weather of a city.

    Args:
        location: The name of the city.
    """
    print(f"tool    get_weather({location!r})")
    return "sunny, 18 degrees"


async def main() -> None:
    """Ask two questions in one session; the second prompt continues the first."""
    # The SDK sends traces to the vendor's servers by default.
    set_tracing_disabled(disabled=True)
    base_url = os.environ.get("SERVICE_URL", URL)
    key = os.environ.get("SEMANTIC_API_KEY", "local")
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key, timeout=600) as client:
        agent = Agent(
            name="helper",
            instructions="You are a helpful assistant who answers in one short sentence.",
            model=OpenAIResponsesModel(model="semantic-demo", openai_client=client),
            model_settings=ModelSettings(temperature=0, max_tokens=48),
            tools=[get_weather],
        )
        session = SQLiteSession("example")
        for question in sys.argv[1:] or (
            "What is the weather in Paris?",
            "What is the capital of Italy?",
        ):
            print(f"user    {question}")
            result = await Runner.run(agent, question, session=session, max_turns=4)
            print(f"agent   {result.final_output}")
            usage = result.context_wrapper.usage
            known = usage.input_tokens_details.cached_tokens
            print(f"        {usage.requests} requests, {usage.input_tokens} tokens of prompts, "
                  f"{known} of them known")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
