"""Conversations in the page: what is sent and shown, stopped, regenerated, forked and copied."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.clients.axe import violations
from tests.support.clients.browser import Browser, open_browser
from tests.support.models.tiny_vision import picture
from tests.support.polling import scaled
from tests.support.processes.scripted_service import (
    ENDLESS,
    ENDLESS_PACE_S,
    call,
    line,
    scripted_service,
)
from tests.support.processes.service import Service
from tests.support.processes.two_models import seeing_service

pytestmark = pytest.mark.nightly

MARKUP = (
    "<img src=x onerror=\"document.title='owned'\"></textarea>"
    "<script>document.title='owned'</script>"
)
#: A manual that later turns find in the cache.
MANUAL = " ".join(f"Rule {n}: answer in one short sentence." for n in range(80))
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
FIELD = ".composer textarea"
LAST = ".turn:last-child"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = scripted_service(
        tmp_path_factory.mktemp("chat"),
        [
            line("Go on", ENDLESS, pace_s=ENDLESS_PACE_S),
            line("quick", f"A short answer {MARKUP}."),
            line("code", "Run this:\n```sh\nls <b>\n```\nand read."),
            line("Look around", call("look", place="Paris")),
            line("a tower", "I see a tower."),
        ],
        SEMANTIC_MODEL__NAME="semantic-demo",
    ).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="module")
def window(scripted: Service) -> Iterator[Browser]:
    with open_browser(scripted.base_url) as one:
        yield one


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The window; at the end of a test its console must be empty."""
    yield window
    assert window.messages() == []
    assert window.find("main img") == window.find("main script") == []
    assert "owned" not in window.driver.title


def get(service: Service, path: str) -> Any:
    url = f"{service.base_url}/v1/{path}"
    return httpx.get(url, timeout=scaled(60)).raise_for_status().json()


def make_agent(service: Service, **profile: Any) -> str:
    url = f"{service.base_url}/v1/agents"
    reply = httpx.post(url, json=profile, timeout=scaled(60)).raise_for_status()
    return str(reply.json()["id"])


def say(browser: Browser, text: str, *keys: str) -> None:
    """Type a message and send it."""
    browser.wait(lambda: browser.find(FIELD), "the field")
    browser.find(FIELD)[-1].send_keys(text, *(keys or (Keys.ENTER,)))


def talk(browser: Browser, text: str, answer: str, turn: int) -> None:
    """Send a message and wait until its turn has ended."""
    say(browser, text)
    browser.see(answer, f"article[aria-label='Turn {turn}']")
    regenerate = f"button[aria-label='Regenerate turn {turn}']:not(:disabled)"
    browser.wait(lambda: browser.find(regenerate), "the end of the turn")


def agent_of(browser: Browser) -> str:
    return unquote(browser.driver.current_url.partition("#/chat/")[2].partition("?")[0])


def test_a_first_message_begins_a_conversation_that_shows_texts_as_texts(
    browser: Browser, scripted: Service
) -> None:
    browser.open("chat")
    browser.wait(lambda: browser.find(".beginning textarea"), "the fields of a new agent")
    browser.find(".beginning textarea")[0].send_keys("Be short.")
    browser.find(".beginning input")[0].send_keys("first-talk")
    say(browser, f"quick {MARKUP}", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two", Keys.ENTER)
    browser.see(f"A short answer {MARKUP}.", ".answer")
    assert agent_of(browser) == "first-talk"
    browser.see(f"quick {MARKUP}\ntwo", ".asked")
    agent = get(scripted, "agents/first-talk")
    assert (agent["system"], agent["turns"]) == ("Be short.", 1)
    assert browser.find(FIELD)[-1].get_attribute("value") == ""
    browser.see("No images: semantic-demo reads text only.", ".composer")
    assert browser.find(".composer input[type=file]") == []
    browser.open("chat/first-talk")
    browser.see(f"A short answer {MARKUP}.", ".answer")
    talk(browser, "code please", "and read.", 2)
    assert browser.text(f"{LAST} .code").strip() == "ls <b>"


def test_under_an_answer_stands_what_the_cache_did(browser: Browser, scripted: Service) -> None:
    agent = make_agent(scripted, system=MANUAL)
    browser.open(f"chat/{agent}")
    talk(browser, "quick", "A short answer", 1)
    talk(browser, "code", "and read.", 2)
    job = get(scripted, f"agents/{agent}")["history"][1]["job"]
    cache = get(scripted, f"jobs/{job}")["cache"]
    assert cache["cached_tokens"] > 256
    computed = cache["prompt_tokens"] - cache["cached_tokens"]
    browser.see(
        f"{cache['known_tokens']:,} of {cache['prompt_tokens']:,} tokens known · "
        f"{computed:,} computed · the rest is new",
        f"{LAST} .cache-line summary",
    )
    browser.click(f"{LAST} .cache-line summary")
    browser.see("came from memory", f"{LAST} .cache-line")
    browser.see("first token", f"{LAST} .cache-line")


def test_a_stopped_answer_stays_until_the_next_message_takes_its_place(
    browser: Browser, scripted: Service
) -> None:
    agent = make_agent(scripted, max_tokens=4000)
    browser.open(f"chat/{agent}")
    say(browser, "Go on.")
    browser.see("10 11 12 13", ".answer")
    browser.find(FIELD)[-1].send_keys(Keys.ESCAPE)
    browser.see("cancelled", LAST)
    browser.see("10 11 12 13", ".answer")
    assert get(scripted, f"agents/{agent}")["turns"] == 0
    # The same message again is a new turn of the same agent.
    browser.click("button:not(:disabled)", "Regenerate")
    browser.wait(lambda: browser.find(".send[type=button]"), "an answer that is written")
    browser.see("10 11 12 13", ".answer")
    browser.click(".send", "Stop")
    browser.see("cancelled", LAST)
    talk(browser, "quick", "A short answer", 1)
    assert agent_of(browser) == agent
    assert "Go on" not in browser.text(".turns")


def test_another_answer_and_a_fork_leave_the_conversation_as_it_is(
    browser: Browser, scripted: Service
) -> None:
    agent = make_agent(scripted, id="trunk")
    browser.open(f"chat/{agent}")
    talk(browser, "quick one", "A short answer", 1)
    talk(browser, "quick two", "A short answer", 2)
    browser.click("button[aria-label='Regenerate turn 2']")
    browser.see("Forked from trunk after turn 1.", "main")
    browser.see("quick two", LAST)
    branch = agent_of(browser)
    browser.wait(lambda: get(scripted, f"agents/{branch}")["turns"] == 2, "the other answer")
    browser.wait(lambda: browser.find("button[aria-label='Fork from turn 1']:enabled"), "a fork")
    browser.click("button[aria-label='Fork from turn 1']")
    browser.wait(lambda: agent_of(browser) != branch, "the fork of the fork")
    browser.see(f"Forked from {branch[:39]}", "main")
    talk(browser, "code", "and read.", 2)
    assert [turn.text.partition("\n")[0] for turn in browser.find(".asked")] == [
        "quick one",
        "code",
    ]
    assert get(scripted, "agents/trunk")["turns"] == 2


def test_reasoning_and_calls_are_folded_and_their_results_are_sent(
    browser: Browser, scripted: Service
) -> None:
    agent = make_agent(scripted, tools=[TOOL], thinking=True)
    browser.open(f"chat/{agent}")
    talk(browser, "Look around.", "Call of look", 1)
    assert "Paris" not in browser.text(".turns")
    browser.click(".fold summary", "Reasoning")
    browser.see("I know my line.", ".fold")
    browser.click(".fold summary", "Call of look")
    browser.see('"place": "Paris"', ".fold")
    browser.see("Result of look", ".composer")
    browser.find(FIELD)[0].send_keys(f"a tower {MARKUP}")
    browser.click(".send", "Send")
    browser.see("I see a tower.", LAST)
    browser.click(f"{LAST} .fold summary", "Result of a tool")
    browser.see(MARKUP, f"{LAST} .fold")
    sent = get(scripted, f"agents/{agent}/messages")["data"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "assistant"]
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]


def test_a_turn_can_be_copied_as_a_command(browser: Browser, scripted: Service) -> None:
    agent = make_agent(scripted)
    browser.open(f"chat/{agent}")
    talk(browser, 'quick, it\'s \u202e$(touch owned) `x` "y"', "A short answer", 1)
    browser.click(".curl summary")
    command = browser.text(".curl pre")
    assert "\\u202e" in command
    done = subprocess.run(
        ["bash", "-c", f"{command} -s"],
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    )
    assert "event: finished" in done.stdout
    first, second = (
        one["content"]
        for one in get(scripted, f"agents/{agent}/messages")["data"]
        if one["role"] == "user"
    )
    assert first == second


def test_the_model_and_the_options_of_a_turn_are_sent(browser: Browser, scripted: Service) -> None:
    browser.open("chat")
    browser.see("semantic-demo, loaded", ".composer select")
    browser.choose(".composer select", "semantic-demo")
    browser.click(".options summary")
    for field, value in zip(browser.find(".options input[type=number]"), ("0.5", "3"), strict=True):
        field.send_keys(value, Keys.TAB)
    browser.click(".options .check")
    say(browser, "quick")
    browser.wait(lambda: agent_of(browser), "the new agent")
    options = get(scripted, f"agents/{agent_of(browser)}")["options"]
    assert (options["model"], options["temperature"]) == ("semantic-demo", 0.5)
    assert (options["max_tokens"], options["thinking"]) == (3, True)
    browser.see("Reasoning", ".turn")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_conversation_is_accessible_and_fits_a_phone(
    browser: Browser, scripted: Service, width: int, theme: str
) -> None:
    screen = {"width": width, "height": 780, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    agent = make_agent(scripted, tools=[TOOL], thinking=True)
    browser.open(f"chat/{agent}")
    browser.run(f"localStorage.setItem('semantic.theme', '{theme}')")
    browser.open(f"chat/{agent}")
    talk(browser, f"quick {'long' * 60}", "A short answer", 1)
    talk(browser, "Look around.", "Call of look", 2)
    browser.run("document.querySelectorAll('main summary').forEach((one) => one.click())")
    assert violations(browser) == []
    assert not browser.run("return document.documentElement.scrollWidth > innerWidth")
    browser.run("localStorage.clear()")
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from seeing_service(tmp_path_factory.mktemp("seeing"))


def test_a_model_that_sees_gets_the_images_of_a_message(seeing: Service, tmp_path: Path) -> None:
    sent = [picture(seed) for seed in (5, 6, 7)]
    files = [tmp_path / f"{number}.png" for number in range(len(sent))]
    for file, one in zip(files, sent, strict=True):
        file.write_bytes(one.content)
    agent = make_agent(seeing, max_tokens=5)
    with open_browser(seeing.base_url) as browser:
        browser.open(f"chat/{agent}")
        browser.wait(lambda: browser.find("input[type=file]"), "the field for images")
        browser.find("input[type=file]")[0].send_keys("\n".join(map(str, files)))
        browser.wait(lambda: len(browser.find(".composer canvas")) == len(files), "the images")
        browser.click("button[aria-label='Remove image 2']")
        browser.wait(lambda: len(browser.find(".composer canvas")) == 2, "one image less")
        say(browser, "What is on these?")
        browser.see("What is on these?", ".asked")
        asked = get(seeing, f"agents/{agent}/messages")["data"][0]["content"]
        images = [part["image_url"]["url"] for part in asked if part["type"] == "image_url"]
        assert images == [sent[0].url, sent[2].url]
        pixels = "return document.querySelector('.asked canvas')?.width"
        browser.wait(lambda: browser.run(pixels) == 90, "the picture in the turn")
        assert browser.find(".composer canvas") == []
        browser.wait(
            lambda: browser.find("button[aria-label='Regenerate turn 1']:enabled"), "an end"
        )
        browser.click("button[aria-label='Regenerate turn 1']")
        browser.wait(lambda: agent_of(browser) != agent, "the fork")
        browser.wait(lambda: len(browser.find(".asked canvas")) == 2, "the images of the fork")
        again = get(seeing, f"agents/{agent_of(browser)}/messages")["data"][0]["content"]
        assert again == asked
        assert violations(browser) == []
        assert browser.messages() == []
