"""The generated files of the site, by their path below ``docs``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from docs.site import adr_index, api_reference, cli_reference, event_catalogue, settings_reference

FILES: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "adr/index.md": adr_index.render,
        "reference/api.md": api_reference.render,
        "reference/cli.md": cli_reference.render,
        "reference/events.md": event_catalogue.render,
        "reference/settings.md": settings_reference.render,
        "reference/openapi.json": api_reference.document_text,
    }
)
