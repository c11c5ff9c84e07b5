from __future__ import annotations

import base64
from pathlib import Path

import pytest
from pydantic import SecretStr

from domain.errors import LogUnavailable
from ops.settings.service import WebhookSettings
from ops.webhooks.sender import KEY_NAME, webhook_secret

ONE = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TWO = "whsec_" + base64.b64encode(b"x" * 64).decode()


def _given(text: str, directory: Path) -> str:
    return webhook_secret(WebhookSettings(secret=SecretStr(text)), directory)


def test_secret_is_drawn_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    drawn = webhook_secret(WebhookSettings(), tmp_path)
    assert drawn == webhook_secret(WebhookSettings(), tmp_path)
    assert len(base64.b64decode(drawn.removeprefix("whsec_"), validate=True)) == 32
    assert (tmp_path / KEY_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [ONE, f"{ONE} {TWO}"])
def test_secrets_of_the_settings_need_no_file(text: str, tmp_path: Path) -> None:
    assert _given(text, tmp_path) == text
    assert not (tmp_path / KEY_NAME).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_!!!",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        base64.b64encode(b"x" * 32).decode(),
        f"{ONE} other",
    ],
)
def test_what_is_no_secret_is_refused_in_settings_and_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match=r"webhooks\.secret: .*webhook secret"):
        _given(text, tmp_path)
    (tmp_path / KEY_NAME).write_text(text)
    with pytest.raises(LogUnavailable, match=rf"{KEY_NAME}: .*webhook secret"):
        webhook_secret(WebhookSettings(), tmp_path)
