"""The page in a real browser, once; the other cases of a browser are nightly."""

from __future__ import annotations

import httpx

from tests.support.clients.browser import open_browser
from tests.support.polling import scaled
from tests.support.processes.service import Service


def test_the_page_shows_a_job_under_its_own_policy(service: Service) -> None:
    accepted = httpx.post(
        f"{service.base_url}/v1/jobs",
        json={"prompt": "Say hello.", "max_tokens": 4},
        timeout=scaled(60),
    ).raise_for_status()
    job_id = accepted.json()["id"]
    with open_browser(service.base_url) as browser:
        browser.open("jobs")
        browser.see(job_id[-6:], "[role=grid]")
        browser.click("nav a", "Now")
        browser.wait(lambda: browser.find("nav a[aria-current=page]")[0].text == "Now", "the view")
        assert browser.messages() == []
