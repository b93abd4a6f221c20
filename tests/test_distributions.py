"""What `make dist` refuses: distributions that do not fit each other, and missing or stray files."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "build_distributions", ROOT / "scripts" / "build_distributions.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def distribution(version, needs=(), extras=()):
    result = Message()
    result["Version"] = version
    for line in needs:
        result["Requires-Dist"] = line
    for extra in extras:
        result["Provides-Extra"] = extra
    return result


@pytest.mark.parametrize(
    ("version", "needs", "problem"),
    [
        ("1.0", ["softmetal==1.0", "softcoreml==1.0; sys_platform != 'darwin'", "numpy>=1"], None),
        ("1.0", ["softmetal[cuda]==1.0; extra == 'x'", "lbrx[x]; extra == 'y'"], None),
        ("1.1", ["softmetal==1.0"], "have the versions 1.0, 1.1"),
        ("1.0", ["softmetal"], "lbrx needs softmetal: write =={version}"),
        ("1.0", ["softmetal>=1.0"], "lbrx needs softmetal>=1.0"),
        ("1.0", ["softcoreml==0.9; extra == 'x'"], "lbrx needs softcoreml==0.9"),
        ("1.0", ["softmetal[cuda,gpu]==1.0"], "there is no extra gpu"),
        ("1.0", ["lbrx[z]; extra == 'y'"], "there is no extra z"),
    ],
)
def test_distributions_that_need_each_other(script, version, needs, problem):
    wheels = {
        "softmetal": distribution("1.0", ["ziglang>=0.17"], ["cuda"]),
        "softcoreml": distribution("1.0"),
        "lbrx": distribution(version, needs, ["x", "y"]),
    }
    if problem is None:
        script.check_needs(wheels)
        return
    with pytest.raises(SystemExit) as found:
        script.check_needs(wheels)
    assert problem in str(found.value)


def test_files_that_git_does_not_know(script, monkeypatch):
    monkeypatch.setattr(script, "committed", lambda name: {"a.py", "b.msl"})
    script.check_files("lbrx", {"a.py", "b.msl"}, Path("x.whl"))
    for found, problem in (({"a.py"}, "lacks b.msl"), ({"a.py", "b.msl", "c"}, "git does not, c")):
        with pytest.raises(SystemExit, match=problem):
            script.check_files("lbrx", found, Path("x.whl"))


def test_the_version_is_in_one_place():
    version = (ROOT / "lbrx/src/lbrx/version.py").read_text().split('"')[-2]
    for name in ("softmetal", "softcoreml", "lbrx", "lbrx-video"):
        text = (ROOT / name / "pyproject.toml").read_text()
        assert 'dynamic = ["version"' in text
        assert f'"{version}"' not in text
        assert f"=={version}" not in text


# ---- the library in lbrx's wheel for macOS, as <mach-o/loader.h> and Apple's cs_blobs.h lay it out ----

ARM64, DYLIB, LOAD_DYLIB, SYMTAB, CODE_SIGNATURE, BUILD_VERSION = 0x100000C, 6, 0xC, 2, 0x1D, 0x32
SUPER_BLOB, CODE_DIRECTORY, AD_HOC, SHA256 = 0xFADE0CC0, 0xFADE0C02, 2, 2


@pytest.fixture(scope="module")
def dylib(script, tmp_path_factory):
    return script.encoder_library(tmp_path_factory.mktemp("dylib")).read_bytes()


def load_commands(data):
    """The bytes of each load command, by its number."""
    magic, cpu, _, kind, count = struct.unpack_from("<5I", data)
    assert (magic, cpu, kind) == (0xFEEDFACF, ARM64, DYLIB)
    place, found = 32, {}
    for _ in range(count):
        number, size = struct.unpack_from("<2I", data, place)
        found.setdefault(number, []).append(data[place : place + size])
        place += size
    return found


def test_the_encoder_library_is_one_of_macos(dylib):
    commands = load_commands(dylib)
    (version,) = commands[BUILD_VERSION]
    assert struct.unpack_from("<2I", version, 8) == (1, 14 << 16)  # macOS 14.0
    names = [
        one[struct.unpack_from("<I", one, 8)[0] :].rstrip(b"\0") for one in commands[LOAD_DYLIB]
    ]
    assert names == [b"/usr/lib/libSystem.B.dylib"]


def test_the_encoder_library_has_no_other_names(dylib):
    (table,) = load_commands(dylib)[SYMTAB]
    symbols, count, strings, _ = struct.unpack_from("<4I", table, 8)
    defined, needed = set(), set()
    for place in range(symbols, symbols + 16 * count, 16):
        text, kind, section = struct.unpack_from("<IBB", dylib, place)
        name = dylib[strings + text : dylib.index(b"\0", strings + text)].decode()
        if kind & 1:  # external
            (defined if section else needed).add(name)
    linkers = {"__mh_dylib_header", "___dso_handle"}
    assert defined - linkers == {"_lbrx_open", "_lbrx_encode"}
    assert needed - {"dyld_stub_binder"} == {"_dlopen", "_dlsym"}


def test_the_encoder_library_is_signed_ad_hoc(dylib):
    """macOS loads no code on arm64 whose pages do not have the hashes of a signature."""
    (command,) = load_commands(dylib)[CODE_SIGNATURE]
    start, size = struct.unpack_from("<2I", command, 8)
    assert start + size == len(dylib)
    magic, _, count = struct.unpack_from(">3I", dylib, start)
    assert magic == SUPER_BLOB
    slots = [struct.unpack_from(">2I", dylib, start + 12 + 8 * n) for n in range(count)]
    directory = start + dict(slots)[0]
    magic, _, _, flags, hashes, _, _, pages, limit, width, kind = struct.unpack_from(
        ">9I2B", dylib, directory
    )
    page = 1 << dylib[directory + 39]
    assert (magic, flags & AD_HOC, kind, width) == (CODE_DIRECTORY, AD_HOC, SHA256, 32)
    assert limit == start
    assert pages == -(-limit // page)
    for n in range(pages):
        place = directory + hashes + width * n
        text = dylib[n * page : min((n + 1) * page, limit)]
        assert dylib[place : place + width] == hashlib.sha256(text).digest()
