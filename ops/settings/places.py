"""Defaults that programs need before the settings are read; imports nothing of weight."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

#: Name of configuration files.
CONFIG_NAME: Final = "semantic.toml"
#: Where the service listens.
HOST: Final = "127.0.0.1"
PORT: Final = 8000


def default_data_dir() -> Path:
    """Return where this platform keeps an application's data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "semantic"
    return Path.home() / ".local" / "share" / "semantic"


def user_config_dir() -> Path:
    """Return the directory of the user's configuration; it need not exist."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "semantic"


def user_config_file() -> Path:
    """Return the user's own configuration file; it need not exist."""
    return user_config_dir() / CONFIG_NAME
