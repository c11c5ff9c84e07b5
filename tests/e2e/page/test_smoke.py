"""Every view of the page in a real browser; the other cases of a browser are nightly."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.clients.browser import Browser, open_browser
from tests.support.polling import scaled
from tests.support.processes.service import Service


@pytest.fixture(scope="module")
def browser(service: Service) -> Iterator[Browser]:
    with open_browser(service.base_url) as opened:
        yield opened


def test_the_page_shows_a_job_under_its_own_policy(browser: Browser, service: Service) -> None:
    accepted = httpx.post(
        f"{service.base_url}/v1/jobs",
        json={"prompt": "Say hello.", "max_tokens": 4},
        timeout=scaled(60),
    ).raise_for_status()
    job_id = accepted.json()["id"]
    browser.open("jobs")
    browser.see(job_id[-6:], "[role=grid]")
    browser.click("nav a", "Now")
    browser.wait(lambda: browser.find("nav a[aria-current=page]")[0].text == "Now", "the view")
    assert browser.messages() == []


def test_no_view_leaves_an_error_in_the_console_when_it_is_shown_and_left(
    browser: Browser, service: Service
) -> None:
    body = {"prompt": "Tell me a long story about a fox.", "max_tokens": 2000}
    accepted = httpx.post(f"{service.base_url}/v1/jobs", json=body, timeout=scaled(60))
    job_id = accepted.raise_for_status().json()["id"]
    browser.driver.get(service.base_url)  # what the block of the start names
    browser.see("Now", "nav")
    views = [one.text for one in browser.find("nav a")]
    for name in views:
        _show(browser, name)
        browser.driver.set_window_size(900, 700)
        browser.open(f"jobs/{job_id}")
        browser.see(job_id, "h1")
        _show(browser, "Now")
        browser.wait(lambda: len(browser.find(".chart canvas")) == 4, "the charts")
        browser.driver.set_window_size(1280, 900)  # the charts follow, also on their way out
        _show(browser, name)
        assert browser.messages() == [], name
    _show(browser, "Models")
    browser.see("openai/gpt-oss-20b", "section[aria-label='Fits this machine']")
    browser.see("semantic-demo", "section[aria-label='On this machine']")
    for width in (360, 700, 900, 1280):
        browser.driver.set_window_size(width, 800)
        browser.wait(lambda: browser.run(_ALL_IN_SIGHT), f"every view in sight at {width}")
    httpx.post(f"{service.base_url}/v1/jobs/{job_id}/cancel", timeout=scaled(60))


_ALL_IN_SIGHT = """
const nav = document.querySelector("nav").getBoundingClientRect();
return [...document.querySelectorAll("nav a")].every((one) => {
  const box = one.getBoundingClientRect();
  return box.left >= nav.left - 1 && box.right <= nav.right + 1 && box.right <= innerWidth;
});
"""


def _show(browser: Browser, name: str) -> None:
    browser.click("nav a", name)
    browser.wait(lambda: browser.find("nav a[aria-current=page]")[0].text == name, name)
