"""Write the table of docs/howto/profiles.md from the chips that softmetal ships.

python softmetal/scripts/profiles_table.py
"""

from __future__ import annotations

import re
from pathlib import Path

from softmetal import profiles

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "profiles.md"
_BLOCK = re.compile(r"(<!-- table -->\n).*?(<!-- end of table -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with its table as it should be."""
    titles, *rows = profiles.table()
    lines = [titles, ["---"] * len(titles), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _BLOCK.sub(lambda match: match[1] + table + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
