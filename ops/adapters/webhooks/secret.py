"""The webhook secret: from the settings, or generated once into a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest, LogUnavailable
from domain.webhook.delivery import read_secrets, write_secret
from ops.adapters.data_dir.secret_file import write_once
from ops.setting_groups.service import WebhookSettings

KEY_NAME: Final = "webhooks.key"
_SECRET_BYTES: Final = 32


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
            write_once(file, write_secret(os.urandom(_SECRET_BYTES)) + "\n")
        return _checked(file.read_text("ascii").strip(), str(file))
    except (OSError, UnicodeError) as error:
        msg = f"the secret of the webhooks cannot be read: {error}"
        raise LogUnavailable(msg) from error


def _checked(text: str, where: str) -> str:
    try:
        read_secrets(text)
    except InvalidRequest as error:
        msg = f"{where}: {error.message}"
        raise LogUnavailable(msg) from error
    return text
