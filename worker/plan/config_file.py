"""Finds and reads the ``config.json`` of a model, downloading that file only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

import worker.demo_model
from domain.errors import InvalidRequest, NotFound
from ops.setting_groups.models import DEMO_MODEL

_NAME = "config.json"


class ConfigMissing(NotFound):
    """The model has no ``config.json`` that can be found; the message lists the attempts."""

    code = "config_missing"


class ConfigGarbled(InvalidRequest):
    """The ``config.json`` holds no JSON object."""

    code = "config_garbled"


def read_config(model_id: str) -> dict[str, Any]:
    """Return the configuration of a model.

    Args:
        model_id: A directory, a configuration file, a hub id (``owner/name``), or
            ``semantic-demo``.

    Raises:
        ConfigMissing: The file is not found, here or on the hub.
        ConfigGarbled: The file holds no JSON object.
    """
    file = _find(model_id)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigMissing(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigGarbled(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigGarbled(f"{file} holds no JSON object")
    return config


def _find(model_id: str) -> Path:
    if model_id == DEMO_MODEL:
        return Path(worker.demo_model.__file__).parent / _NAME
    local = Path(model_id).expanduser()
    if local.is_file():
        return local
    if local.is_dir():
        if not (local / _NAME).is_file():
            raise ConfigMissing(f"{local} holds no {_NAME}")
        return local / _NAME
    if local.is_absolute() or model_id.startswith((".", "~")) or model_id.count("/") != 1:
        msg = (
            f"there is no directory {local.absolute()}, and {model_id!r} is no hub id"
            f" (owner/name) and not {DEMO_MODEL}"
        )
        raise ConfigMissing(msg)
    return _from_hub(model_id)


def _from_hub(hub_id: str) -> Path:
    try:
        return Path(hf_hub_download(hub_id, _NAME, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        return Path(hf_hub_download(hub_id, _NAME))
    except Exception as error:
        # The hub client passes on the errors of its HTTP library, which differs by version.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        msg = (
            f"there is no directory {Path(hub_id).absolute()}, the hub's cache does not hold"
            f" {hub_id}, and its {_NAME} could not be fetched: {type(error).__name__}: {reason}"
        )
        raise ConfigMissing(msg) from error
