"""Entry points: when they are read, which one is taken, and what is said of one that is broken."""

from __future__ import annotations

import sys

import pytest
from with_toy import run

import lbrx
from lbrx import entry_points, extras
from lbrx.entry_points import Registry


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes distributions, each in a folder of its own, the last one first on sys.path."""

    def install(name, points, modules):
        folder = tmp_path / name
        (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(points)
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(folder)

    return install


POINTS = """
# a comment = of nobody
[console_scripts]
a = nothing:main
[lbrx.things]
a = thing_a
  b=thing_b
[other.things]
c = thing_c
"""


@pytest.fixture
def things():
    """A registry, as modules of entry points find it."""
    found: Registry[str] = Registry("lbrx.things")
    sys.modules["things_registry"] = type(sys)("things_registry")
    sys.modules["things_registry"].THINGS = found
    yield found
    del sys.modules["things_registry"]


ADDS = "from things_registry import THINGS\nTHINGS[{0!r}] = {1!r}\n"


def test_a_look_imports_one_module(install, things):
    install("some", POINTS, {"thing_a": ADDS.format("a", "A"), "thing_b": ADDS.format("b", "B")})
    assert "c" not in things
    assert things.get("c") is None
    with pytest.raises(KeyError, match="c"):
        things["c"]
    assert not {"thing_a", "thing_b"} & sys.modules.keys()
    assert things["a"] == "A"
    assert "thing_b" not in sys.modules
    assert list(things.items()) == [("a", "A")]
    assert dict(things.whole()) == {"a": "A", "b": "B"}


def test_the_first_on_the_path_is_taken(install, things):
    install("later", POINTS, {"thing_a": ADDS.format("a", "later")})
    install("first", POINTS.replace("thing_a", "thing_1"), {"thing_1": ADDS.format("a", "first")})
    assert things["a"] == "first"
    assert entry_points.named("lbrx.things")["a"] == ("thing_1", "first 1.0")


def test_what_the_registry_has_comes_first(install, things):
    install("some", POINTS, {"thing_a": ADDS.format("a", "theirs")})
    things["a"] = "ours"
    assert things["a"] == "ours"
    assert "thing_a" not in sys.modules


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported(install, things, text, problem):
    install("broken", POINTS, {"thing_a": text})
    with pytest.raises(lbrx.LbrxError) as found:
        things["a"]
    assert str(found.value) == (
        f"broken 1.0 adds a to lbrx.things, and thing_a cannot be imported: {problem}: "
        "update or uninstall it"
    )


WITHOUT = """
import sys
import lbrx
from lbrx import entry_points

entry_points.named = lambda group: {}
for use in ("lbrx.video", "import lbrx.video", "from lbrx.video import open"):
    try:
        exec(use)
    except (AttributeError, ModuleNotFoundError) as error:
        print(type(error).__name__, error)
print(hasattr(lbrx, "video"), "video" in dir(lbrx))
from lbrx.cli import main
sys.exit(main(["video", "info", "a.mov"]))
"""
REMEDY = f"video is in the distribution lbrx-video: {extras.install('video')}"


def test_a_distribution_that_is_not_installed():
    done = run(None, "-c", WITHOUT)
    assert done.stdout.splitlines() == [
        f"AttributeError {REMEDY}",
        f"ModuleNotFoundError {REMEDY}",
        f"ModuleNotFoundError {REMEDY}",
        "False False",
    ]
    assert (done.returncode, done.stderr) == (1, f"lbrx: {REMEDY}\n")
