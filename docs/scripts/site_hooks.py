"""MkDocs hooks: the project's own pages and examples become pages of the site.

Files of the repository outside docs/ are linked as they are in a checkout (`../ARCHITECTURE.md`,
`../../examples/tensors.py`), so that the links work there too; here they lead to generated pages.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads hooks by their path

from site_links import dead_links
from site_places import CODE, EXAMPLES, LINK, ROOT, generated


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show and count warnings: with --quiet MkDocs drops them before `strict` sees them."""
    logger = logging.getLogger("mkdocs")
    logger.setLevel(min(logger.level, logging.WARNING))
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse dead links, also those of HTML in pages and docstrings."""
    if found := list(dead_links(Path(config.site_dir))):
        raise PluginError("\n".join(["the site has dead links:", *found]))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, place in generated().items():
        if place != EXAMPLES:
            files.append(File.generated(config, place, content=(ROOT / name).read_text("utf-8")))
    files.append(File.generated(config, EXAMPLES, content=_examples()))
    return files


def _examples() -> str:
    head = "# Examples\n\nPrograms of the folder `examples/`; the tests run all of them.\n"
    files = sorted((ROOT / "examples").glob("*.py"))
    parts = (f"## {path.name}\n\n```python\n{path.read_text('utf-8')}```\n" for path in files)
    return "\n".join([head, *parts])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files outside docs/ lead to their generated pages."""
    place = page.file.src_uri
    origin = {made: name for name, made in generated().items()}.get(place, f"docs/{place}")
    parts = CODE.split(markdown)
    parts[::2] = [_linked(part, origin, place) for part in parts[::2]]  # the others are code
    return "".join(parts)


def _linked(text: str, origin: str, place: str) -> str:
    return LINK.sub(lambda found: _target(found, origin, place), text)


def _target(found: re.Match[str], origin: str, place: str) -> str:
    """A link from the file `origin` of the repository, as a link from `place` of the site."""
    if not found[2]:  # a heading of the same page
        return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[2]))
    anchor = found[3] or ""
    made = generated()
    if target in made:
        inside = made[target]
        if inside == EXAMPLES:
            anchor = "#" + posixpath.basename(target).replace(".", "")
    elif target.startswith("docs/"):
        inside = target.removeprefix("docs/")
    else:
        return found[0]
    relative = posixpath.relpath(inside, posixpath.dirname(place) or ".")
    return f"{found[1]}{relative}{anchor}{found[4]}"
