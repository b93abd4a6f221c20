"""Write the pages and pictures that come from the sources; --check only compares.

python docs/scripts/generate_pages.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import api_pages
import command_page
import constants_page
import kernel_page
import layout_pictures
import settings_page

DOCS = Path(__file__).parents[1]


def generated() -> dict[str, str]:
    """Every generated file by its place in docs/."""
    makers = (
        api_pages,
        command_page,
        settings_page,
        kernel_page,
        constants_page,
        layout_pictures,
    )
    return {place: text for maker in makers for place, text in maker.generated().items()}


def stale() -> list[str]:
    """The pages that differ from what the sources say, or that nothing generates any more."""
    wanted = generated()
    old = {
        str(path.relative_to(DOCS)): path.read_text("utf-8")
        for path in [*DOCS.glob("reference/python/*.md"), *(DOCS / name for name in wanted)]
        if path.exists()
    }
    return sorted(name for name in wanted | old if wanted.get(name) != old.get(name))


def write() -> None:
    wanted = generated()
    for path in DOCS.glob("reference/python/*.md"):
        if str(path.relative_to(DOCS)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    if "--check" in sys.argv:
        found = stale()
        sys.exit(f"stale, run docs/scripts/generate_pages.py: {', '.join(found)}" if found else 0)
    write()
