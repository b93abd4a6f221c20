"""Where files of the repository outside docs/ are in the site."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
EXAMPLES = "project/examples.md"
LINK = re.compile(r"(\]\()([^)\s#:]*)(#[^)\s]*)?(\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def generated() -> dict[str, str]:
    """Places in the site of files that are not in docs/."""
    places = {name: f"project/{name.lower()}" for name in PROJECT}
    for path in ROOT.glob("*/pyproject.toml"):  # the distributions
        places[f"{path.parent.name}/README.md"] = f"project/{path.parent.name}.md"
    examples = {f"examples/{path.name}": EXAMPLES for path in (ROOT / "examples").glob("*.py")}
    return places | examples
