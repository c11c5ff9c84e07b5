"""The webhook secret: from the settings, or generated once into a file."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Final

from domain.errors import LogUnavailable
from ops.adapters.data_dir.secret_file import write_once
from ops.setting_groups.service import WebhookSettings

KEY_NAME: Final = "webhooks.key"
_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32
#: Bytes of a secret, as Standard Webhooks bounds them.
_BYTES_MIN: Final = 24
_BYTES_MAX: Final = 64


def webhook_secret(settings: WebhookSettings, data_dir: Path) -> str:
    """Return the secret, or several separated by spaces; generate one if there is none.

    Raises:
        LogUnavailable: The file cannot be read or written, or its content is no secret.
    """
    if settings.secret is not None:
        return _checked(settings.secret.get_secret_value(), "webhooks.secret")
    file = data_dir / KEY_NAME
    try:
        if not file.exists():
            key = base64.b64encode(os.urandom(_SECRET_BYTES)).decode()
            write_once(file, f"{_PREFIX}{key}\n")
        return _checked(file.read_text("ascii").strip(), str(file))
    except (OSError, UnicodeError) as error:
        msg = f"the secret of the webhooks cannot be read: {error}"
        raise LogUnavailable(msg) from error


def _checked(text: str, where: str) -> str:
    secrets = text.split()
    if not secrets:
        msg = f"{where}: there is no webhook secret"
        raise LogUnavailable(msg)
    if not all(map(_is_secret, secrets)):
        msg = (
            f"{where}: a webhook secret is {_PREFIX} and the base64 of {_BYTES_MIN} to"
            f" {_BYTES_MAX} bytes"
        )
        raise LogUnavailable(msg)
    return text


def _is_secret(word: str) -> bool:
    try:
        key = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        return False
    return word.startswith(_PREFIX) and _BYTES_MIN <= len(key) <= _BYTES_MAX
