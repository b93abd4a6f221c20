"""Links in the built site: MkDocs looks at those of Markdown, not at those of HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r'<[a-z][^<>]*?\s(?:href|src)="([^"]*)"')
ANCHOR = re.compile(r'<[a-z][^<>]*?\s(?:id|name)="([^"]*)"')
ELSEWHERE = re.compile(r"[a-z]+:|//")  # another host, or data


def dead_links(site: Path) -> Iterator[str]:
    """Links of a folder's pages to files and anchors that are not there."""
    texts = {path: path.read_text("utf-8") for path in sorted(site.rglob("*.html"))}
    anchors = {path: {unescape(a) for a in ANCHOR.findall(text)} for path, text in texts.items()}
    for page, text in texts.items():
        for link in sorted(set(LINK.findall(text))):
            place, _, anchor = unquote(unescape(link)).partition("#")
            base = site if place.startswith("/") else page.parent
            path = (base / place.split("?")[0].lstrip("/")).resolve() if place else page
            name = f"{page.relative_to(site)}: {link}"
            if ELSEWHERE.match(link):
                continue
            if not path.exists():
                yield f"{name}: there is no such file"
            elif anchor and path in anchors and anchor not in anchors[path]:
                yield f"{name}: there is no such anchor"
