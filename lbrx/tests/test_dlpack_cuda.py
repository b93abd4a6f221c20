"""DLPack with memory of an NVIDIA GPU, on a GPU that is not there: its memory is the host's, so that
numpy can stand in for other libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import ctypes, gc, weakref
import numpy as np
import ml_dtypes
import lbrx

api = ctypes.pythonapi
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
for function, more in ((api.PyCapsule_GetName, []), (api.PyCapsule_GetPointer, [ctypes.c_char_p])):
    function.argtypes = [ctypes.py_object, *more]
DEVICE = {b"dltensor": 8, b"dltensor_versioned": 40}  # where the kind of device is

def on(capsule, kind):
    '''Say that a capsule's memory is on another kind of device; what it said before.'''
    name = api.PyCapsule_GetName(capsule)
    field = ctypes.c_int32.from_address(api.PyCapsule_GetPointer(capsule, name) + DEVICE[name])
    before, field.value = field.value, kind
    return before

class Theirs:
    '''An array that another library has on GPU 0.'''
    streams = []

    def __init__(self, values, gpu=0):
        self.values, self.gpu = values, gpu

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        capsule = self.values.__dlpack__(max_version=max_version)
        on(capsule, 2)
        return capsule

    def __dlpack_device__(self):
        return 2, self.gpu

class AsHost:
    '''Lets numpy read what lbrx exports.'''
    def __init__(self, tensor, **options):
        self.tensor, self.options = tensor, options

    def __dlpack__(self, *, max_version=None, copy=None, dl_device=None):
        capsule = self.tensor.__dlpack__(max_version=max_version, **self.options)
        assert on(capsule, 1) == 2
        return capsule

    def __dlpack_device__(self):
        return 1, 0
"""
PROGRAMS = {
    "exports are memory of the GPU": """
for dtype in ("float32", "float16", "int64", "uint8", "bool"):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    t = lbrx.tensor(values, device="metal")
    assert t.__dlpack_device__() == (2, 0)
    for stream in (None, 1, 2, 77, -1):
        seen = np.from_dlpack(AsHost(t, stream=stream))
        np.testing.assert_array_equal(seen, values)
        assert not seen.flags.writeable and seen.__array_interface__["data"][0] == t.storage.address
    np.testing.assert_array_equal(np.from_dlpack(AsHost(t[:, ::2].T)), values[:, ::2].T)
""",
    "a copy, and the host": """
values = np.arange(6, dtype=np.float32)
t = lbrx.tensor(values, device="metal")
copied = np.from_dlpack(AsHost(t, copy=True))
assert copied.__array_interface__["data"][0] != t.storage.address
host = t.__dlpack__(dl_device=(1, 0), copy=True)
assert on(host, 1) == 1
""",
    "what is exported stays": """
t = lbrx.tensor(np.full(1000, 7, np.float32), device="metal")
seen, buffer = np.from_dlpack(AsHost(t)), weakref.ref(t.storage.buffer)
del t
gc.collect()
assert buffer() is not None and (seen == 7).all()
del seen
gc.collect()
assert buffer() is None
t = lbrx.tensor(np.zeros(1000, np.float32), device="metal")
capsule, buffer = t.__dlpack__(), weakref.ref(t.storage.buffer)
del t, capsule  # which nobody used
gc.collect()
assert buffer() is None
""",
    "imports share memory, and wait for their stream": """
for dtype in ("float32", "float16", "int32", "uint8"):
    values = np.arange(60).astype(dtype).reshape(3, 4, 5)
    for view in (values, values[1:], values[:, ::2, 1:], values.T, values[::-1], values[:0], values[0, 0, 0]):
        t = lbrx.from_dlpack(Theirs(np.asarray(view)))
        assert t.device == "metal" and t.shape == view.shape and t.dtype == dtype
        np.testing.assert_array_equal(t.numpy(), view)
assert all(isinstance(s, int) and s > 2 for s in Theirs.streams), Theirs.streams
values[...] = 9
assert (lbrx.from_dlpack(Theirs(values)).numpy() == 9).all()
back = np.from_dlpack(AsHost(lbrx.from_dlpack(Theirs(values))))
assert back.__array_interface__["data"][0] == values.ctypes.data
""",
    "what is imported stays, and is released": """
values = np.arange(8, dtype=np.float32)
alive = weakref.ref(values)
t = lbrx.from_dlpack(Theirs(values))
del values
gc.collect()
assert alive() is not None and t.numpy()[3] == 3
del t
lbrx.metal.context().queue.finish()
gc.collect()
assert alive() is None
""",
    "to the cpu, and copies": """
values = np.arange(8, dtype=np.float32)
t = lbrx.from_dlpack(Theirs(values), device="cpu")
assert t.device == "cpu" and (t.numpy() == values).all()
for t in (lbrx.from_dlpack(Theirs(values), copy=True), lbrx.tensor(Theirs(values), device="metal")):
    assert t.device == "metal" and t.storage.address != values.ctypes.data
assert lbrx.tensor(Theirs(values), dtype="float16", device="cpu").dtype == "float16"
""",
    "mistakes": """
def refused(kind, text, function):
    try:
        function()
    except kind as problem:
        assert text in str(problem), problem
    else:
        raise AssertionError(text)
values = np.arange(8, dtype=np.float32)
refused(lbrx.DeviceError, "is on GPU 3, and lbrx computes on Fake GPU: set SOFTMETAL_DEVICE=cuda:3",
        lambda: lbrx.from_dlpack(Theirs(values, 3)))
refused(lbrx.DeviceError, "is on GPU 3", lambda: lbrx.tensor(Theirs(values, 3)))
refused(ValueError, "leave copy=None", lambda: lbrx.from_dlpack(Theirs(values), device="cpu", copy=False))
refused(ValueError, "stream=0 is ambiguous", lambda: lbrx.tensor(values, device="metal").__dlpack__(stream=0))
refused(lbrx.DtypeError, "code 5 with 64 bits", lambda: lbrx.from_dlpack(Theirs(np.zeros(2, np.complex64))))
""",
}


# All of them in one process, each with names of its own: what went wrong, by program.
RUN = """
import json, sys, traceback
wrong = {}
for name, program in json.load(sys.stdin).items():
    try:
        exec(program, dict(globals()))
    except Exception:
        wrong[name] = traceback.format_exc()
print(json.dumps(wrong))
"""


@pytest.fixture(scope="module")
def wrong(fake_libcuda: Path) -> dict[str, str]:
    settings = {"SOFTMETAL_DEVICE": "cuda:0", "LD_LIBRARY_PATH": str(fake_libcuda)}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + RUN],
        input=json.dumps(PROGRAMS),
        env={**os.environ, **settings, "SOFTMETAL_PROFILE": ""},  # the GPU keeps its own name
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, wrong: dict[str, str]) -> None:
    assert name not in wrong, wrong[name]
