"""The built site is whole, loads nothing from other hosts, and draws its diagrams."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clients.browser import open_browser
from tests.support.clients.npm import missing
from tests.support.polling import scaled

ROOT = Path(__file__).parents[3]
_BUILT_WITHIN_S = 300
#: Attributes by which a page loads something, or asks for it.
_LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the site, built strictly: a bad link or anchor fails it."""
    if importlib.util.find_spec("material") is None:
        missing("mkdocs-material is not installed: make docs")
    out = tmp_path_factory.mktemp("site")
    command = ["build", "--strict", "--quiet", "-f", "docs/site/mkdocs.yml", "-d", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(_BUILT_WITHIN_S),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_pages_are_there_and_name_no_other_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = [first or second for first, second in _LOADED.findall(html)]
        assert [one for one in loaded if re.match(r"(?:[a-z]+:)?//", one)] == [], page


def test_lists_and_tables_of_the_sources_are_lists_and_tables(site: Path) -> None:
    for page in sorted(site.rglob("*.html")):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), re.DOTALL):
            assert not re.search(r"\n(?:[-*] |\d+\. |\| )", paragraph), (page.name, paragraph[:200])


def test_diagrams_are_drawn_from_the_site_alone(site: Path) -> None:
    with open_browser("") as browser:
        for name, count in (("flows.html", 10), ("kv-cache.html", 1)):
            browser.driver.get((site / name).as_uri())
            # The theme replaces the source of each diagram by a drawing.
            drawn = "return document.querySelectorAll('div.mermaid').length"
            browser.wait(lambda: browser.run(drawn) >= count, name)  # noqa: B023 - called at once
            assert browser.find("pre.mermaid") == []
            requests = "return performance.getEntriesByType('resource').map(one => one.name)"
            assert {one.partition(":")[0] for one in browser.run(requests)} <= {"file", "data"}
            assert browser.messages() == []
