"""Write the table of docs/howto/quantization.md from the schemes; --check only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from lbrx import quant
from lbrx.quant import Scheme, affine_schemes, checkpoint_schemes, gguf, mlx_schemes

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "quantization.md"
_BLOCK = re.compile(r"(<!-- table -->\n).*?(<!-- end of table -->)", re.DOTALL)
TITLES = ["scheme", "bits per weight", "values / bytes", "stored fields", "error"]


def shown() -> list[Scheme]:
    """Every GGUF type, the other schemes with groups of 64, and MLX's small floats."""
    others = [*affine_schemes.SCHEMES, *mlx_schemes.SCHEMES, *checkpoint_schemes.SCHEMES]
    usual = [s for s in others if s.group_size == 64 or (s.name.count(":") == 1 and s.symmetric)]
    return [*gguf.SCHEMES, *usual]


def field(scheme: Scheme, name: str) -> str:
    item = scheme.layout[name]
    base = item.base.name.replace("uint", "u").replace("int", "i").replace("float", "f")
    return f"{name} {base}" + "".join(f" x{size}" for size in item.shape)


def error(scheme: Scheme) -> str:
    """The root mean square error of normally distributed values, in per cent of their deviation."""
    if scheme.encode is None:
        return "decoding only"
    values = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
    back = quant.dequantize(*quant.quantize(values, scheme))
    return f"{100 * np.sqrt(np.mean((back - values) ** 2.0)):.3g}%"


def row(scheme: Scheme) -> list[str]:
    fields = ", ".join(field(scheme, name) for name in scheme.fields)
    block = f"{scheme.elements} / {scheme.block_bytes}"
    return [f"`{scheme.name}`", f"{scheme.bits_per_weight:.4g}", block, fields, error(scheme)]


def page(text: str) -> str:
    """The page with a new table."""
    lines = [TITLES, ["---"] * len(TITLES), *(row(scheme) for scheme in shown())]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _BLOCK.sub(lambda match: match[1] + table + match[2], text)


if __name__ == "__main__":
    old = PAGE.read_text()
    new = page(old)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else f"{PAGE} is stale: run lbrx/scripts/quant_table.py")
    PAGE.write_text(new)
