"""Write docs/reference/architectures.md: each architecture, its formats and what it is tested
against; --check only compares.

The page says what the tests contain: tables of cases are read from their sources.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

from lbrx.files.formats.architecture_tables import ARCHITECTURES
from lbrx.models import architectures

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "architectures.md"
TESTS = ROOT / "lbrx" / "tests"
HEAD = """\
# Architectures

The networks that lbrx runs, by the `model_type` of config.json: the formats that it reads them from
and writes them to, and what their results are compared with on random weights. In every run of the
tests that is a formula in float64 NumPy (`lbrx/tests/models/reference_model.py`), or what
transformers computed once with the same weights (`stored_cases.py`); with `make test-peers` it is
transformers itself, and llama.cpp with the model as a GGUF file.
`lbrx/scripts/architecture_table.py` writes this page from the tables of the code and of the tests.

| model_type | what it is | Hugging Face | GGUF | MLX | in every run | with peers |
|---|---|---|---|---|---|---|
"""


def names_in(path: Path, *tables: str) -> set[str]:
    """The keys of dictionaries, or the items of tuples, that a module assigns to these names."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id in tables for t in targets):
            parts = node.value.keys if isinstance(node.value, ast.Dict) else ast.walk(node.value)
            found |= {p.value for p in parts if isinstance(p, ast.Constant)}
    return {name for name in found if isinstance(name, str)}


def kinds_in(path: Path, table: str) -> set[str]:
    """The architectures of a table of cases."""
    return {name.partition(",")[0] for name in names_in(path, table)}


def page() -> str:
    formulas = kinds_in(TESTS / "models" / "test_architectures.py", "KINDS")
    stored = kinds_in(TESTS / "models" / "stored_cases.py", "CASES")
    peers = TESTS / "peers"
    beside = kinds_in(peers / "peer_models.py", "CASES") | stored
    left_out = tuple(names_in(peers / "test_language_models.py", "RECURRENT", "NOT_IN_GGUF"))
    lines = []
    for kind in architectures.known():
        module = import_module(f"lbrx.models.architectures.{kind}")
        what = " ".join((module.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")
        table = ARCHITECTURES.get(kind)
        in_llama = table and kind not in stored and not f"{kind},".startswith(left_out)
        own = {"formula": kind in formulas, "transformers": kind in stored}
        with_peers = {"transformers": kind in beside, "llama.cpp": in_llama}
        cells = [f"`{kind}`", what, "yes", f"`{table.gguf}`" if table else "no"]
        cells += ["yes" if table else "no"]
        cells += [
            ", ".join(name for name, is_one in c.items() if is_one) for c in (own, with_peers)
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def main(check: bool) -> int:
    new = page()
    if check:
        same = PAGE.exists() and PAGE.read_text("utf-8") == new
        print("" if same else f"{PAGE} is stale: run lbrx/scripts/architecture_table.py")
        return 0 if same else 1
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
