"""Examples with packages of their own, each in an environment as its page sets it up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.clients.browser import open_browser
from tests.support.polling import scaled, wait_until
from tests.support.processes.examples import ENDED_WITHIN_S, begin, end, interpreter, output_of
from tests.support.processes.service import Service, free_port

pytestmark = pytest.mark.nightly


def test_an_agent_of_the_sdk_calls_a_tool_and_continues_its_session(
    service: Service, tmp_path: Path
) -> None:
    python = interpreter("openai_agents")
    output = output_of(begin(service, tmp_path, "openai_agents/weather.py", python=python))
    assert "tool    get_weather('Paris')" in output
    assert len(re.findall(r"^agent   \S", output, re.MULTILINE)) == 2
    turns = re.findall(r"(\d+) requests, (\d+) tokens of prompts, (\d+) of them known", output)
    (first, _, _), (_, prompt, known) = turns
    assert int(first) == 2  # the call, and the answer with its result
    # The second question continues the conversation that the service has read.
    assert int(known) > int(prompt) / 2, output


def test_the_chat_page_streams_an_answer(service: Service, tmp_path: Path) -> None:
    port = free_port()
    page = begin(
        service,
        tmp_path,
        "chat_page/chat.py",
        python=interpreter("chat_page"),
        GRADIO_SERVER_PORT=str(port),
        GRADIO_ANALYTICS_ENABLED="False",
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_served(page, url), within_s=ENDED_WITHIN_S, ignore=httpx.HTTPError)
        with open_browser(url) as browser:
            browser.driver.get(url)
            (entry,) = browser.wait(lambda: browser.find("textarea"), "the field of the question")
            entry.send_keys("What is the capital of France?" + Keys.ENTER)
            browser.see("The capital of France is Paris.")
    finally:
        end(page)


def is_served(page: subprocess.Popen[str], url: str) -> bool:
    """Return whether a page that still runs answers."""
    assert page.poll() is None, "it has ended"
    return httpx.get(url, timeout=scaled(10)).is_success
