"""Hooks of MkDocs: add the generated pages, and keep the site free of other hosts.

MkDocs loads this file by its path; the types of MkDocs are not needed here but at run time, since
only ``make docs`` and one test install it.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

from docs.site.pages import FILES

#: Scripts of the theme, before which that of the diagrams must run.
_BUNDLE: Final = re.compile(r'<script src="[^"]*/bundle\.[0-9a-f]+\.min\.js">')
_DIAGRAMS: Final = ("site/assets/vendor/mermaid.js", "site/assets/mermaid-theme.js")
_LINK: Final = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]+)\)")


def on_files(files: Any, *, config: Any) -> Any:  # noqa: ANN401 - of MkDocs
    """Add the generated files."""
    for path, render in FILES.items():
        files.append(File.generated(config, path, content=render()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:  # noqa: ANN401 - of MkDocs
    """Write links that leave ``docs`` as paths in the repository, and folders as their index."""

    def outside(found: re.Match[str]) -> str:
        text, link = found.groups()
        path = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(page.file.src_uri), link)
        )
        return found[0] if path.startswith("docs/") else f"{text} (`{path}`)"

    return _LINK.sub(outside, markdown).replace("](adr/)", "](adr/index.md)")


def on_post_page(output: str, *, page: Any, **_: Any) -> str:  # noqa: ANN401 - of MkDocs
    """Load the scripts of the diagrams on pages that have some, from the site itself."""
    if 'class="mermaid"' not in output:
        return output
    scripts = "".join(
        f'<script src="{get_relative_url(path, page.url)}"></script>' for path in _DIAGRAMS
    )
    return _BUNDLE.sub(lambda found: f"{scripts}{found[0]}", output, count=1)
