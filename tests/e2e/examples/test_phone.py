"""A job from curl, followed on a phone with a key that may only read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from hashlib import sha256

import pytest

from tests.support.clients.browser import open_browser
from tests.support.polling import scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly
PHONE = {"width": 390, "height": 780, "deviceScaleFactor": 2, "mobile": True}
DESK_KEY, PHONE_KEY = "a-key-of-the-desk-0001", "a-key-of-the-phone-0001"


def test_a_phone_follows_a_job(own_service: Callable[..., Service]) -> None:
    service = own_service(
        SEMANTIC_API_KEY=DESK_KEY,
        SEMANTIC_SERVER__API_KEYS=f'["desk={digest(DESK_KEY)}", "phone={digest(PHONE_KEY)}"]',
        SEMANTIC_SERVER__KEY_SCOPES='{"desk": "admin", "phone": "read"}',
    )
    link = submitted(service)
    with open_browser(service.base_url) as browser:
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        browser.driver.get(link)
        (entry,) = browser.wait(lambda: browser.find("input[type=password]"), "the key's field")
        entry.send_keys(PHONE_KEY + "\n")
        browser.click("label", "Show prompts and answers")
        browser.see("The end.")
        browser.see("completed")
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.run(wide) <= 0
        # Without a key the first request is refused, and the page asks for one.
        assert [one for one in browser.messages() if "(Forbidden)" not in one] == []
    assert service.stop() == 0, service.log()


def digest(key: str) -> str:
    """Return a key as the settings have it."""
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def submitted(service: Service) -> str:
    """Submit a job as the page does, and return the link for the phone."""
    body = '{"prompt": "Tell me a long story about a fox.", "seed": 7}'
    command = f"""curl -s -D - -o /dev/null {service.base_url}/v1/jobs -d '{body}' \
        -H "authorization: Bearer {DESK_KEY}" | tr -d '\\r' |
        sed -n 's|^location: /v1|{service.base_url}/ui#|p'"""
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=scaled(60)
    )
    assert "/ui#/jobs/job-" in done.stdout, done
    return done.stdout.strip()
