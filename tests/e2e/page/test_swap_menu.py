"""The loaded model is changed from the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.browser import open_browser
from tests.support.processes.two_models import TwoModels


@pytest.mark.nightly
def test_another_model_is_loaded_from_the_menu(tmp_path: Path) -> None:
    models = TwoModels(tmp_path)
    try:
        with open_browser(models.service.base_url) as browser:
            browser.open()
            browser.wait(lambda: browser.text(".top-name") == "a", "the loaded model")
            browser.choose(".swap select", "b")
            browser.click(".swap button")
            browser.click(".swap button[aria-label='Swap now? b']")
            browser.wait(lambda: "Changing to" in browser.text(".top-model"), "the swap")
            browser.wait(lambda: browser.text(".top-name") == "b", "the other model")
            assert browser.messages() == []
    finally:
        assert models.close() == 0, models.service.log()
