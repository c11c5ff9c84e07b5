"""The page in a real browser: accessible, safe against hostile texts, careful with keys.

Every case that opens views also holds that the content policy refused nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.clients.axe import violations
from tests.support.clients.browser import Browser, open_browser
from tests.support.clients.webhook_receiver import Reply, receiver
from tests.support.page.population import populate, wait_until_given_up, webhook_states
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly

IMAGE = "<img src=x onerror=\"document.title='owned'\">"
#: Turns the direction of text, hides characters, ends a line.
TRICKY = "\u202egnp\u200b\u2066exe\u0007\r\n"
#: Names of this vendor follow the loaded model.
HOSTILE_MODEL = "claude-" + IMAGE + "</script><script>document.title='owned'</script>" + TRICKY
LONG_AGENT = "a" + "long-" * 40
#: Characters that no view may show as they are.
HIDDEN = set("\u202e\u200b\u2066\u0007")
KEY = "page-test-key-0123456789"
#: What an element of each view shows once its data are there.
VIEWS = {
    "": "main h1",
    "chat": ".composer .images",
    "chat/guide": ".cache-line",
    "jobs": "[role=grid] [data-index]",
    "agents": "[role=grid] [data-index]",
    "agents/writer": ".block",
    "agents/session-1%2Fsearch": ".block",
    "agents/guide": ".block",
    "events": ".data-table tbody tr",
    "batches": "[role=grid] [data-index]",
    "schedules": "[role=grid] [data-index]",
    "webhooks": "[role=grid] [data-index]",
    "setup": ".copy-line",
}
#: Collects what the content policy refuses, from the first script on.
_WATCH = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with data for every view, hostile ones among them."""
    running = Service(
        tmp_path_factory.mktemp("page") / "data",
        env={"SEMANTIC_WEBHOOKS__ALLOW_HOSTS": '["127.0.0.1"]'},
    ).start()
    try:
        with receiver(lambda _: Reply(410)) as there:
            populate(running.base_url, receiver_url=there.url("/gone"))
            _add_hostile(running.base_url)
            wait_until_given_up(running.base_url)
        yield running
        assert running.stop() == 0, running.log()
    finally:
        if running.process.poll() is None:
            running.kill()


def _add_hostile(base_url: str) -> None:
    body = {
        "model": HOSTILE_MODEL[:256],
        "prompt": IMAGE + TRICKY,
        "max_tokens": 4,
        "agent_id": LONG_AGENT,
    }
    headers = {"user-agent": IMAGE, "x-request-id": "x"}
    created = httpx.post(f"{base_url}/v1/jobs", json=body, headers=headers, timeout=scaled(60))
    assert created.status_code == 202, created.text
    reason = {"reason": IMAGE + TRICKY.strip()}
    httpx.post(f"{base_url}/admin/pause", json=reason, timeout=scaled(60)).raise_for_status()
    httpx.post(f"{base_url}/admin/resume", timeout=scaled(60)).raise_for_status()


@pytest.fixture
def browser(filled: Service, request: pytest.FixtureRequest) -> Iterator[Browser]:
    width = getattr(request, "param", 1280)
    with open_browser(filled.base_url, width=width) as one:
        # A window may be no narrower than 500 pixels; a screen may.
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        one.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        one.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        yield one


def _open(browser: Browser, view: str) -> None:
    browser.open(view)
    browser.wait(lambda: browser.find(VIEWS.get(view, "main h2")), f"the view {view!r}")


def _ended_job(base_url: str) -> str:
    listed = httpx.get(
        f"{base_url}/v1/jobs?status=completed&agent_id=writer", timeout=scaled(60)
    ).json()
    job: str = listed["data"][0]["id"]
    return job


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize(("browser", "width"), [(1280, 1280), (390, 390)], indirect=["browser"])
def test_every_view_is_accessible_and_within_its_policy(
    browser: Browser, width: int, theme: str
) -> None:
    browser.open()
    browser.run(f"localStorage.setItem('semantic.theme', '{theme}')")
    found: dict[str, list[dict[str, Any]]] = {}
    refused: dict[str, list[str]] = {}
    for view in [*VIEWS, f"jobs/{_ended_job(browser.base_url)}"]:
        _open(browser, view)
        assert browser.run("return innerWidth") == width
        if faults := violations(browser):
            found[view] = faults
        if reports := browser.run("return window.refused"):
            refused[view] = reports
        wide = browser.run("return document.documentElement.scrollWidth > innerWidth")
        assert not wide, f"{view!r} scrolls sideways"
        assert browser.messages() == []
    assert found == {}, json.dumps(found, indent=2)
    assert refused == {}


def test_hostile_texts_are_shown_as_texts(browser: Browser, filled: Service) -> None:
    events = httpx.get(
        f"{filled.base_url}/v1/events?type=JobSubmitted&limit=100", timeout=scaled(WITHIN_S)
    ).json()["data"]
    job = next(one["stream"] for one in events if IMAGE in one["data"]["model"])
    views = [
        *VIEWS,
        f"agents/{quote(LONG_AGENT, safe='')}",
        f"jobs/{job}",
        "agents/%3Cimg%20src=x%3E",
    ]
    for view in views:
        browser.open(view)
        browser.wait(lambda: browser.find("main *"), view)
        browser.see("semantic")
        assert browser.find("main img") == []
        assert browser.find("main script") == []
        assert "owned" not in browser.driver.title
        wide = browser.run("return document.documentElement.scrollWidth > innerWidth")
        assert not wide, f"{view!r} scrolls sideways"
        assert not HIDDEN & set(browser.run("return document.body.textContent")), view
    browser.open(f"jobs/{job}")
    browser.see(f"request from {IMAGE}", "main")
    browser.open("events?type=AdmissionPaused")
    browser.see("<img src=x onerror=", "[role=grid]")
    browser.see("\u27e8202E\u27e9", "[role=grid]")


def test_an_agent_is_forgotten_after_two_presses(browser: Browser, filled: Service) -> None:
    agent = "forgettable"
    body = {"prompt": "Say hello. " * 200, "max_tokens": 4, "agent_id": agent}
    httpx.post(f"{filled.base_url}/v1/jobs", json=body, timeout=scaled(60)).raise_for_status()

    def contexts() -> list[Any]:
        url = f"{filled.base_url}/v1/agents/{agent}/blocks"
        found: list[Any] = httpx.get(url, timeout=scaled(60)).json()["contexts"]
        return found

    wait_until(contexts)
    browser.open(f"agents/{agent}")
    browser.wait(lambda: browser.find(".block"), "its blocks")
    browser.click("button", "Forget the cache")
    browser.click("button", "Delete its blocks")
    browser.see("No context of this agent is saved.")
    assert contexts() == []


def test_the_slider_shows_an_earlier_state(browser: Browser) -> None:
    _open(browser, "events")
    number = browser.find("input[type=number]")[0]
    number.send_keys(Keys.CONTROL, "a")
    number.send_keys("1")
    browser.see("No job was accepted by then.")
    assert "at=1" in browser.driver.current_url
    browser.click("button", "Back to now")
    browser.wait(lambda: browser.find(".past tbody tr"), "the jobs of now")
    browser.click("button", "Check all events")
    browser.see("whole")


def test_events_come_by_themselves_and_are_filtered(browser: Browser, filled: Service) -> None:
    browser.open("events?type=JobSubmitted&agent_id=tailed")
    browser.see("No event fits.")
    browser.see("live", ".connection")
    body = {"prompt": "Say hello.", "max_tokens": 4, "agent_id": "tailed"}
    job = httpx.post(f"{filled.base_url}/v1/jobs", json=body, timeout=scaled(60)).json()["id"]
    browser.see(job[-6:], "[role=grid]")


def test_a_failed_webhook_is_sent_again(browser: Browser, filled: Service) -> None:
    _open(browser, "webhooks")
    browser.click("button", "Send again")
    browser.see("pending", "[role=grid]")
    assert webhook_states(filled.base_url) & {"pending", "failed"}


def test_a_key_is_asked_for_and_stays_out_of_the_address(
    own_service: Callable[..., Service],
) -> None:
    service = own_service(SEMANTIC_SERVER__API_KEYS=json.dumps([KEY]), SEMANTIC_API_KEY=KEY)
    with open_browser(service.base_url) as browser:
        browser.open("setup")
        browser.see("This service asks for a key")
        assert violations(browser) == []
        field = browser.find("input[type=password]")[0]
        field.send_keys("wrong-key")
        browser.click("button", "Use the key")
        browser.see("not one of this service's")
        assert browser.run("return sessionStorage.getItem('semantic.key')") is None
        field = browser.find("input[type=password]")[0]
        field.clear()
        field.send_keys(KEY)
        browser.click("button", "Use the key")
        browser.see("SEMANTIC_API_KEY", ".copy-line")
        assert KEY not in browser.text()
        assert KEY not in browser.driver.current_url
        assert browser.run("return sessionStorage.getItem('semantic.key')") == KEY
        assert browser.run("return localStorage.getItem('semantic.key')") is None
        browser.open("events")
        browser.see("live", ".connection")
        addresses = browser.run(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
        )
        assert all(KEY not in address for address in addresses)


def test_another_site_cannot_frame_the_page(browser: Browser, filled: Service) -> None:
    frame = f"<iframe src='{filled.base_url}/ui'></iframe>"
    browser.driver.get("data:text/html," + quote(frame))
    browser.wait(lambda: browser.find("iframe"), "the frame")
    browser.driver.switch_to.frame(0)
    assert "semantic" not in browser.driver.page_source.partition("<body")[2].partition("ERR_")[0]
    head = httpx.get(f"{filled.base_url}/ui", timeout=scaled(60)).headers
    assert head["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in head["content-security-policy"]
    assert head["referrer-policy"] == "no-referrer"
    assert head["x-content-type-options"] == "nosniff"
