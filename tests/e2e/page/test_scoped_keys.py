"""The page with keys of each scope: no view asks for what its key may not see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.clients.axe import violations
from tests.support.clients.browser import Browser, open_browser
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.scripted_service import ENDLESS, ENDLESS_PACE_S, line, scripted_service
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly

KEYS = {name: f"{name}-" + name[0] * 24 for name in ("ann", "bob", "watch", "root")}
SCOPES = {"watch": "read", "root": "admin"}
WORD = "heliotrope"
VIEWS = (
    "",
    "chat",
    "jobs",
    "agents",
    "agents/ann-1",
    "events",
    "batches",
    "schedules",
    "webhooks",
    "models",
    "setup",
)
CANCEL = "section[aria-label=Running] button"
LOAD = ".swap button"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a job of ann that runs, one of ann and one of bob that have ended."""
    directory = tmp_path_factory.mktemp("keyed")
    config = directory / "semantic.toml"
    config.write_text('[models.other]\nsource = "semantic-demo"\n')
    service = scripted_service(
        directory,
        [line("quick", f"A {WORD}."), line("Go on", ENDLESS, pace_s=ENDLESS_PACE_S)],
        SEMANTIC_CONFIG=str(config),
        SEMANTIC_API_KEY=KEYS["root"],
        SEMANTIC_SERVER__API_KEYS=json.dumps([f"{name}={key}" for name, key in KEYS.items()]),
        SEMANTIC_SERVER__KEY_SCOPES=json.dumps(SCOPES),
    ).start()
    try:
        yield service
        assert service.stop() == 0, service.log()
    finally:
        if service.process.poll() is None:
            service.kill()


def submit(service: Service, name: str, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 4000, "agent_id": f"{name}-1"}
    reply = httpx.post(
        f"{service.base_url}/v1/jobs",
        json=body,
        headers={"x-api-key": KEYS[name]},
        timeout=scaled(60),
    )
    return str(reply.raise_for_status().json()["id"])


def ended(service: Service, name: str) -> str:
    job = submit(service, name, "quick")
    headers = {"x-api-key": KEYS[name]}
    url = f"{service.base_url}/v1/jobs/{job}"
    wait_until(
        lambda: httpx.get(url, headers=headers, timeout=scaled(WITHIN_S)).json()["status"],
        lambda status: status == "completed",
    )
    return job


@pytest.fixture(scope="module")
def jobs(keyed: Service) -> Iterator[dict[str, str]]:
    running = submit(keyed, "ann", "Go on")
    yield {"running": running, "ann": ended(keyed, "ann"), "bob": ended(keyed, "bob")}
    url = f"{keyed.base_url}/v1/jobs/{running}/cancel"
    httpx.post(url, headers=keyed.headers, timeout=scaled(60)).raise_for_status()


@pytest.fixture(scope="module")
def browser(keyed: Service) -> Iterator[Browser]:
    with open_browser(keyed.base_url) as one:
        yield one


def enter(browser: Browser, name: str) -> None:
    browser.open()
    browser.run(f"sessionStorage.setItem('semantic.key', '{KEYS[name]}')")


def disabled(browser: Browser, selector: str) -> list[str | None]:
    """Return the reason of each disabled control, ``None`` for those that can be used."""
    browser.wait(lambda: browser.find(selector), selector)
    return [
        one.get_attribute("title") if not one.is_enabled() else None
        for one in browser.find(selector)
    ]


@pytest.mark.parametrize("name", ["ann", "watch", "root"])
def test_every_view_shows_what_the_key_may_see_without_a_refusal(
    browser: Browser, jobs: dict[str, str], name: str, tmp_path: Path
) -> None:
    enter(browser, name)
    browser.messages()  # the views before the key was there
    for view in (*VIEWS, f"jobs/{jobs['ann']}"):
        browser.open(view)
        browser.wait(lambda: browser.find("main h1"), f"the view {view!r}")
        # A busy service may answer the question for the key's scope a second time only.
        browser.wait(
            lambda: (name in browser.text(".key-note")) == (name != "root"), "the note of the key"
        )
        if view in {"", "events", "agents/ann-1"}:
            assert violations(browser) == []
    browser.click(".job-text label")
    browser.see(WORD, ".texts")
    browser.click(".job-text label")
    browser.open("events")
    whole_log = name != "ann"
    browser.see("whole" if whole_log else "not shown", "main")
    assert bool(browser.find("#chain-title")) == whole_log
    browser.open("jobs")
    browser.see(jobs["ann"][-6:], "[role=grid]")
    assert (jobs["bob"][-6:] in browser.text("[role=grid]")) == whole_log
    assert browser.driver.save_screenshot(str(tmp_path / f"{name}.png"))
    assert browser.messages() == []


@pytest.mark.parametrize(
    ("name", "cancels", "loads"),
    [("ann", True, False), ("watch", False, False), ("root", True, True)],
)
def test_controls_that_a_scope_does_not_allow_are_disabled_with_the_reason(
    browser: Browser, jobs: dict[str, str], name: str, *, cancels: bool, loads: bool
) -> None:
    enter(browser, name)
    browser.open()
    browser.see(jobs["running"][-6:], "section[aria-label=Running]")
    scope = SCOPES.get(name, "own")
    reason = f"The scope {scope} of this key does not allow this."
    assert disabled(browser, CANCEL) == [None if cancels else reason]
    assert disabled(browser, LOAD) == [None if loads else reason]
    browser.open("agents/ann-1")
    assert disabled(browser, ".actions button") == [None if cancels else reason]
    browser.open("chat")
    assert disabled(browser, ".composer .send") == [None if cancels else reason]
    assert browser.messages() == []
