"""What `make check` asks of the documentation before it builds the site.

Every page is in the navigation, every link and anchor leads somewhere, every column of a table has
a heading, generated pages are fresh, and every public name and environment variable is listed and
has a text.

python docs/scripts/check_docs.py
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import generate_pages
import public_names
import settings_page
import yaml
from site_places import CODE, LINK, ROOT, generated

DOCS = ROOT / "docs"
HEADING = re.compile(r"^#+ +(.*?) *(?:\{ *#([\w.-]+) *\})?$", re.MULTILINE)
ANCHOR = re.compile(r'id="([^"]+)"')
TABLE = re.compile(r"^\|(.*)\|\n\|[-:| ]+\|$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def navigation() -> list[str]:
    """The pages of mkdocs.yml's navigation."""

    def leaves(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict | list):
            for each in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(each)

    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    return list(leaves(yaml.load(text, Loader)["nav"]))


def page_problems() -> Iterator[str]:
    listed = navigation()
    made = set(generated().values())
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    yield from (f"mkdocs.yml: {name} is listed twice" for name in listed if listed.count(name) > 1)
    yield from (f"mkdocs.yml: there is no page {n}" for n in sorted(set(listed) - pages - made))
    yield from (f"mkdocs.yml: add {n} to nav" for n in sorted((pages | made) - set(listed)))


@functools.cache
def anchors(path: Path) -> set[str]:
    """The anchors that Python-Markdown gives a page's headings."""
    text = FENCE.sub("", path.read_text("utf-8"))
    found = {slug or _slug(title) for title, slug in HEADING.findall(text)}
    return found | set(ANCHOR.findall(text))


def _slug(title: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def sources() -> list[Path]:
    """All pages in a checkout: the site's are made of them."""
    outside = {ROOT / name for name in generated() if name.endswith(".md")} | {ROOT / "README.md"}
    return sorted({*outside, *DOCS.rglob("*.md")})


def table_problems() -> Iterator[str]:
    for page in sources():
        for columns in TABLE.findall(FENCE.sub("", page.read_text("utf-8"))):
            if not all(map(str.strip, columns.split("|"))):
                yield f"{page.relative_to(ROOT)}: |{columns}|: give each column a heading"


def link_problems() -> Iterator[str]:
    for page in sources():
        text = "".join(CODE.split(page.read_text("utf-8"))[::2])
        for _, target, anchor, _ in LINK.findall(text):
            path = (page.parent / target).resolve() if target else page
            name = f"{page.relative_to(ROOT)}: {target}{anchor}"
            if not path.exists():
                yield f"{name}: there is no such file"
            elif anchor and path.suffix == ".md" and anchor[1:] not in anchors(path):
                yield f"{name}: there is no such heading"


def name_problems() -> Iterator[str]:
    for package in public_names.missing_packages():
        yield f"{package}: add it to docs/scripts/public_names.py, or to the packages left out"
    for page in public_names.pages():
        if page.file != "softmetal_metal":  # Apple documents those
            for _, names in page.sections:
                for name in names:
                    yield from (f"{each}: it has no docstring" for each in _undocumented(name))


def _undocumented(name: str) -> Iterator[str]:
    """The name itself or methods of it that have no text. Constants have theirs in the source."""
    value = pkgutil.resolve_name(name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    text = value.__doc__ or ""
    made = inspect.isclass(value) and text.startswith(f"{value.__name__}(")  # by dataclass
    if not text or made:
        yield name
    fields = getattr(value, "__dataclass_fields__", {})
    for member, each in vars(value).items() if inspect.isclass(value) else ():
        if member in fields or member.startswith("_"):
            continue
        function = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        told = inspect.getdoc(getattr(value, member))  # an implementation inherits the text
        if inspect.isfunction(function) and not told:
            yield f"{name}.{member}"


def problems() -> Iterator[str]:
    yield from page_problems()
    yield from link_problems()
    yield from table_problems()
    yield from name_problems()
    known = {name for name, _ in settings_page.variables()}
    for name in sorted(settings_page.used() - known):
        yield f"{name}: the function that reads it needs a docstring that starts with its name"
    for page in generate_pages.stale():
        yield f"docs/{page} is stale: run docs/scripts/generate_pages.py"


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n", file=sys.stderr)
    sys.exit(1 if found else 0)
