"""Debian's Chromium without a window, driven over WebDriver."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from tests.support.clients.npm import missing
from tests.support.polling import wait_until

SHOWN_WITHIN_S = 60.0
_PROGRAMS = ("chromium", "chromedriver")

T = TypeVar("T")


class Browser:
    """One window of a browser.

    Args:
        driver: The running browser.
        base_url: The service whose page it shows.
    """

    def __init__(self, driver: Chrome, base_url: str) -> None:
        self.driver = driver
        self.base_url = base_url

    def open(self, route: str = "") -> None:
        """Open a view by its hash, such as ``jobs/job-1``, as a fresh page."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.base_url}/ui#/{route}")

    def find(self, selector: str) -> list[WebElement]:
        """Return the elements that a CSS selector finds now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """Return the text of the elements as a reader sees it."""
        return "\n".join(element.text for element in self.find(selector))

    def wait(
        self, condition: Callable[[], T | None], what: str, *, within_s: float = SHOWN_WITHIN_S
    ) -> T:
        """Return the first true value of a condition; elements may vanish meanwhile."""
        return wait_until(
            condition,
            within_s=within_s,
            what=what,
            ignore=WebDriverException,
            describe=lambda: f"the page:\n{self.text()}\n{self.messages()}",
        )

    def see(self, text: str, selector: str = "body") -> None:
        """Wait until a text is shown."""
        self.wait(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element of the selector that has the text, once there is one."""

        def clicked() -> bool:
            for element in self.find(selector):
                if text in element.text:
                    element.click()
                    return True
            return False

        self.wait(clicked, f"a {selector} with {text!r} to click")

    def choose(self, selector: str, text: str) -> None:
        """Choose an option of the first menu by its text, once there is one."""

        def chosen() -> bool:
            for menu in self.find(selector):
                Select(menu).select_by_visible_text(text)
                return True
            return False

        self.wait(chosen, f"a {selector} with the option {text!r}")

    def press(self, key: str) -> None:
        """Press a key, such as ``ArrowDown`` or ``1``, where the focus is."""
        code = getattr(Keys, "_".join(re.findall("[A-Z][a-z]*", key)).upper(), key)
        self.driver.switch_to.active_element.send_keys(code)

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page and return its value."""
        return self.driver.execute_script(script, *arguments)

    def thread_ms(self) -> float:
        """Return the processor time of the page's main thread, in milliseconds."""
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        found = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        (seconds,) = (one["value"] for one in found if one["name"] == "TaskDuration")
        return 1000 * float(seconds)

    def messages(self) -> list[str]:
        """Return the errors in the console since the last call: exceptions and refused loads."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@contextmanager
def open_browser(
    base_url: str, *, width: int = 1280, height: int = 900, resolver: str = ""
) -> Iterator[Browser]:
    """Start a browser and end it afterwards.

    Args:
        base_url: The service whose page it shows.
        width: Of the window.
        height: Of the window.
        resolver: Rules for names in place of DNS, such as ``MAP a.test 127.0.0.2``.

    Raises:
        pytest.skip.Exception: There is no Chromium; in CI the test fails instead.
    """
    paths = [shutil.which(program) for program in _PROGRAMS]
    for program, path in zip(_PROGRAMS, paths, strict=True):
        if path is None:
            missing(f"{program} is not installed")
    options = ChromeOptions()
    options.binary_location = str(paths[0])
    for argument in ("--headless=new", "--disable-gpu", "--no-first-run", "--mute-audio"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.add_argument(f"--host-resolver-rules={resolver}")
    # Frames must come at their usual pace although no window is in front.
    options.add_argument("--disable-renderer-backgrounding")
    options.add_argument("--disable-backgrounding-occluded-windows")
    # Containers give little shared memory.
    options.add_argument("--disable-dev-shm-usage")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(executable_path=str(paths[1])))
    try:
        yield Browser(driver, base_url)
    finally:
        driver.quit()
