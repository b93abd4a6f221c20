"""Records and function constants: their bytes are what kernels read, and their headers are current."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lbrx.command_lists.records import (
    DECLARED,
    FLOAT,
    LONG,
    UCHAR,
    UINT,
    Bool,
    Constants,
    Float,
    Int,
    Record,
    Scalar,
    UInt,
    ULong,
    constant_of,
    constants_of,
    dtype_of,
    fields_of,
    packed,
    record_type,
    struct_of,
)
from lbrx.metal import context

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import record_headers


class Pair(Record):
    first: ULong
    second: UInt


class Everything(Record):
    small: UInt
    pairs: Pair
    three: UINT[3]  # type: ignore[valid-type]
    wide: LONG[2]  # type: ignore[valid-type]
    number: Float
    below: Int


class First(Constants):
    WIDE: Bool
    COUNT: UInt = 2


class Second(First):
    STEP: Int


def test_headers_are_written_from_the_declarations() -> None:
    headers = record_headers.headers()
    found = {path: path.read_text() for path in record_headers.written()}
    assert found == headers, "run python lbrx/scripts/record_headers.py"
    assert len({path.name for path in headers}) == len(headers)


def test_headers_need_no_optional_package() -> None:
    program = "import runpy, sys; sys.modules['av'] = None; sys.argv[1:] = ['--check']; "
    program += f"runpy.run_path({record_headers.__file__!r}, run_name='__main__')"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_kernels_see_fields_where_they_are_packed() -> None:
    """Sizes and offsets of all records, by the compiler."""
    record_headers.import_all()
    kinds = [kind for kind in DECLARED if issubclass(kind, Record)]
    assert len({kind.__name__ for kind in kinds}) == len(kinds), "two records have one name"
    expected, lines = [], []
    for kind in [*kinds, Pair, Everything]:
        expected += [len(_zeros(kind)), *(field.place for field in fields_of(kind))]
        name = kind.__name__
        lines += [f"sizeof({name})"]
        lines += [f"__builtin_offsetof({name}, {field.name})" for field in fields_of(kind)]
    source = "\n".join(
        [
            *(line for kind in [*kinds, Pair, Everything] for line in struct_of(kind)),
            "kernel void offsets(device uint* out [[buffer(0)]]) {",
            *(f"  out[{i}] = {line};" for i, line in enumerate(lines)),
            "}",
        ]
    )
    gpu = context()
    out = gpu.buffer(4 * len(lines))
    made = gpu.shaders.pipeline("offsets", "offsets", source=source)
    gpu.queue.dispatch(made, [out], (1, 1, 1), (1, 1, 1))
    assert out.array(np.uint32).tolist() == expected


def _zeros(kind: type[Record]) -> bytes:
    values = {}
    for field in fields_of(kind):
        if not isinstance(field.type, Scalar):
            values[field.name] = _zeros(field.type)
        else:
            values[field.name] = [0] * field.type.count if field.type.count else 0
    return kind(**values)


def test_a_record_is_its_bytes() -> None:
    made = Pair(first=5, second=7)
    assert made == struct.pack("=QI4x", 5, 7)
    assert isinstance(made, bytes)
    assert repr(made) == "Pair(first=5, second=7)"
    whole = Everything(small=1, pairs=made, three=[2, 3, 4], wide=(-5, 6), number=0.5, below=-8)
    assert whole == struct.pack("=I4x16s3I4x2qfi", 1, made, 2, 3, 4, -5, 6, 0.5, -8)
    assert whole.values()["pairs"] == made
    assert whole.values()["three"] == (2, 3, 4)


def test_arrays_of_records_have_their_layout() -> None:
    kind = record_type("Board", cells=UCHAR[2, 3], place=LONG)
    assert struct_of(kind)[1] == "  uchar cells[2][3];"
    boards = np.zeros(2, dtype_of(kind))
    boards["cells"][1] = [[1, 2, 3], [4, 5, 6]]
    boards["place"] = -7
    assert boards[1].tobytes() == kind(cells=range(1, 7), place=-7)
    many = np.zeros(3, dtype_of(Everything))
    many["pairs"]["second"] = 9
    many["wide"][:, 1] = -3
    pair = Pair(first=0, second=9)
    one = Everything(small=0, pairs=pair, three=[0] * 3, wide=[0, -3], number=0, below=0)
    assert many.tobytes() == one * 3


@pytest.mark.parametrize(
    ("values", "problem", "text"),
    [
        ({"first": 1}, TypeError, "Pair lacks, or does not have, second"),
        ({"first": 1, "second": 2, "third": 3}, TypeError, "Pair lacks, or does not have, third"),
        ({"first": -1, "second": 2}, ValueError, "Pair cannot hold"),
        ({"first": 1, "second": 1 << 32}, ValueError, "Pair cannot hold"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, int], problem: type, text: str) -> None:
    with pytest.raises(problem, match=text):
        Pair(**values)


def test_arrays_have_their_length() -> None:
    kind = record_type("Space", sizes=UINT[2], starts=LONG[1])
    assert struct_of(kind) == ["struct Space {", "  uint sizes[2];", "  long starts[1];", "};"]
    assert kind(sizes=[1, 2], starts=[3]) == struct.pack("=2Iq", 1, 2, 3)
    with pytest.raises(TypeError, match=r"Space\.sizes has 2 values"):
        kind(sizes=[1], starts=[3])
    assert packed(UINT, 1, 2) == struct.pack("=2I", 1, 2)
    assert packed(FLOAT, 0.5) == struct.pack("=f", 0.5)


def test_constants_have_indices_and_types() -> None:
    assert First(WIDE=True) == {0: True, 1: 2}
    made = Second(WIDE=False, COUNT=3, STEP=-4)
    assert made == {0: False, 1: 3, 2: -4}
    assert isinstance(made[2], np.int32)
    assert [constant_of(field) for field in constants_of(Second)] == [
        "constant bool WIDE [[function_constant(0)]];",
        "constant uint COUNT [[function_constant(1)]];",
        "constant int STEP [[function_constant(2)]];",
    ]
    with pytest.raises(TypeError, match="First lacks, or does not have, OTHER"):
        First(WIDE=True, OTHER=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="First lacks, or does not have, WIDE"):
        First(COUNT=1)  # type: ignore[call-arg]
