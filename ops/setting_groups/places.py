"""Defaults that programs need before the settings are read; imports nothing of weight."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

#: Where the service listens.
HOST: Final = "127.0.0.1"
PORT: Final = 8000


def default_data_dir() -> Path:
    """Return where this platform keeps an application's data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "semantic"
    return Path.home() / ".local" / "share" / "semantic"


def user_config_file() -> Path:
    """Return the user's own configuration file; it need not exist."""
    return Path.home() / ".config" / "semantic" / "semantic.toml"
