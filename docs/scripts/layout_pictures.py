"""Pictures of quantized blocks: which bits of which byte belong to which value.

The decoder itself is asked: every bit of a block is flipped, and the values that change are those
that it belongs to. Bits of one value are its code; bits of several are a scale or an offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.quant import Scheme

SHOWN = ("q4_0", "q8_0", "q5_1", "q4_k", "q6_k", "mxfp4", "q4:64", "mlx:3:64")
BASES = 4  # blocks that are tried: a zero scale hides the bits of its codes
ACROSS = 16  # bytes in a row
WIDTH, HEIGHT, GAP, LEFT, TOP = 46, 24, 8, 56, 48
SHADES = ("#dbe7f6", "#f9e3c8", "#dff0d8", "#f2dcea")  # of values, by their quarter of the block
SHARED = "#d9d9d9"
LEAST = 15  # pixels that a number needs


@dataclass(frozen=True)
class Segment:
    """Neighbouring bits of a byte that belong to the same values."""

    byte: int
    first: int
    count: int
    values: tuple[int, ...]


def owners(scheme: Scheme) -> NDArray[np.bool_]:
    """For each bit of a block, lowest of each byte first, the values that depend on it."""
    rng = np.random.default_rng(0)
    size = scheme.block_bytes
    found = np.zeros((8 * size, scheme.elements), np.bool_)
    for _ in range(BASES):
        values = rng.standard_normal((1, scheme.elements)).astype(np.float32)
        assert scheme.encode is not None
        fields = scheme.encode(values, None)
        block = np.zeros(1, scheme.layout)
        for name in scheme.fields:
            block[name] = fields[name]
        raw = block.view(np.uint8)
        flipped = np.repeat(raw[None], 8 * size, axis=0)
        bits = np.arange(8 * size)
        flipped[bits, bits // 8] ^= (1 << (bits % 8)).astype(np.uint8)
        with np.errstate(all="ignore"):
            found |= _decoded(scheme, flipped) != _decoded(scheme, raw[None])
    return found


def _decoded(scheme: Scheme, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = np.ascontiguousarray(raw).view(scheme.layout)[:, 0]
    return scheme.decode({name: blocks[name] for name in scheme.fields})


def segments(scheme: Scheme) -> list[Segment]:
    """The block as segments, in the order of its bytes, without bits that no value depends on."""
    table = [tuple(np.flatnonzero(row)) for row in owners(scheme)]
    made = []
    for byte in range(scheme.block_bytes):
        bits = range(8 * byte, 8 * byte + 8)
        for values, run in groupby(bits, key=table.__getitem__):
            each = list(run)
            if values:
                made.append(Segment(byte, each[0] % 8, len(each), tuple(map(int, values))))
    return made


def picture(scheme: Scheme) -> str:
    """The block as an SVG: one cell for each byte, bit 7 on the left."""
    rows = -(-scheme.block_bytes // ACROSS)
    fields = scheme.layout.fields or {}
    starts = {offset: name for name, (_, offset, *_) in fields.items()}
    parts = [_title(scheme)]
    for byte in range(0, scheme.block_bytes, ACROSS):
        _, y = _corner(byte)
        parts.append(_text(LEFT - 8, y + 16, f"byte {byte}", "end", 9))
    parts += [_segment(scheme, each) for each in segments(scheme)]
    parts.append(_frames(scheme.block_bytes))
    for byte, name in starts.items():
        x, y = _corner(byte)
        parts.append(_text(x, y - 3, name, "start", 9, "bold"))
    width = LEFT + ACROSS * WIDTH + 10
    height = TOP + rows * (HEIGHT + GAP + 8) + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" fill="#222" role="img">'
    )
    title = f"<title>A block of {escape(scheme.name)}</title>"
    back = '<rect width="100%" height="100%" rx="6" fill="white"/>'
    return "\n".join([head, title, back, *parts, "</svg>", ""])


def _title(scheme: Scheme) -> str:
    text = (
        f"{scheme.name}: {scheme.elements} values in {scheme.block_bytes} bytes. "
        "Numbers are values; grey bits belong to several."
    )
    return _text(10, 18, text, "start", 12)


def _corner(byte: int) -> tuple[float, float]:
    return LEFT + byte % ACROSS * WIDTH, TOP + byte // ACROSS * (HEIGHT + GAP + 8)


def _segment(scheme: Scheme, each: Segment) -> str:
    x, y = _corner(each.byte)
    bit = WIDTH / 8
    x += (8 - each.first - each.count) * bit
    wide = each.count * bit
    one = len(each.values) == 1
    shade = SHADES[each.values[0] * len(SHADES) // scheme.elements] if one else SHARED
    box = f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{HEIGHT}" fill="{shade}"/>'
    if not one or wide < LEAST:
        return box
    return box + _text(x + wide / 2, y + 16, str(each.values[0]), "middle", 9)


def _frames(count: int) -> str:
    corners = map(_corner, range(count))
    cells = "".join(f"M{x:g} {y:g}h{WIDTH}v{HEIGHT}h-{WIDTH}z" for x, y in corners)
    return f'<path d="{cells}" fill="none" stroke="#555" stroke-width=".6"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int, weight: str = "") -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{bold}>'
        f"{escape(text)}</text>"
    )


def generated() -> dict[str, str]:
    """The pictures by their place in docs/."""
    return {
        f"assets/blocks/{name.replace(':', '_')}.svg": picture(quant.find(name)) for name in SHOWN
    }
