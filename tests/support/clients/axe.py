"""axe-core, which finds faults of accessibility in a page. From npm, for tests only."""

from __future__ import annotations

from typing import Any

from tests.support.clients import npm
from tests.support.clients.browser import Browser

VERSION = "4.14.1"
#: Rules of WCAG 2 A and AA, and axe's best practices.
_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map((one) => ({
    rule: one.id,
    help: one.help,
    places: one.nodes.map((node) => node.target.join(" ") + ": " + node.failureSummary),
  }))),
  (error) => done([{rule: "axe", help: String(error), places: []}]),
);
"""


def violations(browser: Browser) -> list[dict[str, Any]]:
    """Return the faults of the page as it is shown now.

    Raises:
        pytest.skip.Exception: There is no npm; in CI the test fails instead.
    """
    script = npm.install(
        "axe-core", VERSION, npm.ROOT / ".venv" / "axe" / VERSION, "axe-core/axe.min.js"
    )
    browser.run(script.read_text("utf-8"))
    found: list[dict[str, Any]] = browser.driver.execute_async_script(_RUN)
    return found
