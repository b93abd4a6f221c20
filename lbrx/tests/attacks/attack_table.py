"""Hostile files: the name of each, its bytes, and the text of the error."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Mapping

from file_builders import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    U64,
    array,
    entry,
    field,
    gguf,
    global_name,
    npy,
    onnx,
    onnx_tensor,
    pair,
    pickled,
    safetensors,
    state_dict,
    tensor,
    text,
    torch_file,
    torch_tensor,
    zipped,
)

Files = Mapping[str, bytes]
"""By name; the first is the one to open."""


def _one(name: str) -> Callable[[bytes], Files]:
    return lambda data: {name: data}


_ST, _GG, _PT, _NZ, _OX = map(_one, ("a.safetensors", "a.gguf", "a.pt", "a.npz", "a.onnx"))
_24 = bytes(24)
_DEEP = b'{"a":' * 100_000


def _index(weight_map: object, name: str = "model-1.safetensors") -> Files:
    shard = safetensors({"w": entry()}, _24)
    index = json.dumps({"weight_map": weight_map}).encode()
    return {"model.safetensors.index.json": index, name: shard}


SAFETENSORS: dict[str, tuple[Files, str]] = {
    "empty": (_ST(b""), "a.safetensors: is empty"),
    "length 2**62": (
        _ST(safetensors({}, length=2**62)),
        "header length: 4,611,686,018,427,387,904",
    ),
    "length 2**64-1": (
        _ST(safetensors({}, length=2**64 - 1)),
        "header length: 18,446.* only 2 follow",
    ),
    "length past the end": (_ST(safetensors({}, length=3)), "header length: 3 bytes, but only 2"),
    "not JSON": (_ST(safetensors(b"{'a': 1}")), "header: is not valid JSON"),
    "not UTF-8": (_ST(safetensors(b'{"\xff": 1}')), "header: is not valid JSON"),
    "nested": (_ST(safetensors(_DEEP)), "header: is nested too deeply"),
    "nested lists": (_ST(safetensors(b'{"a":' + b"[" * 100_000)), "header: is nested too deeply"),
    "endless number": (
        _ST(safetensors(b'{"a": ' + b"9" * 5000 + b"}")),
        "header: is not valid JSON",
    ),
    "millions of lists": (
        _ST(safetensors(b'{"a":[' + b"[]," * (9 << 20) + b"[]]}")),
        "header: has more than",
    ),
    "a name twice": (
        _ST(safetensors(b'{"w":{"dtype":"F32","dtype":"F32"}}')),
        "header: .*'dtype' appears twice",
    ),
    "half a character": (
        _ST(safetensors(b'{"\\ud800":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}', _24)),
        "header: is not valid JSON .*surrogates",
    ),
    "a field missing": (
        _ST(safetensors({"w": {"dtype": "F32"}})),
        r"'w': header: is not an object of dtype",
    ),
    "no object": (_ST(safetensors({"w": 3})), r"'w': header: is not an object of dtype"),
    "unknown dtype": (_ST(safetensors({"w": entry("F7")}, _24)), "'w': dtype: 'F7' is not one of"),
    "dtype no text": (_ST(safetensors({"w": entry([1])}, _24)), "'w': dtype: .* is not one of"),
    "shape no list": (_ST(safetensors({"w": entry(shape=6)}, _24)), "'w': shape: is not a list"),
    "negative size": (
        _ST(safetensors({"w": entry(shape=[-2, -3])}, _24)),
        "'w': shape: -2 is not a size",
    ),
    "fraction": (_ST(safetensors({"w": entry(shape=[1.5])}, _24)), "'w': shape: 1.5 is not a size"),
    "truth as size": (_ST(safetensors({"w": entry(shape=[True])}, _24)), "'w': shape: True is no"),
    "many dimensions": (
        _ST(safetensors({"w": entry(shape=[1] * 10**5)}, _24)),
        "100000 dimensions, at most",
    ),
    "beyond 64 bits": (
        _ST(safetensors({"w": entry(shape=[2**62, 9])}, _24)),
        "'w': shape: .* larger than any file",
    ),
    "zero hides size": (
        _ST(safetensors({"w": entry(shape=[2**62, 9, 0])}, _24)),
        "'w': shape: .* larger than",
    ),
    "offsets no range": (
        _ST(safetensors({"w": entry(offsets=[0])}, _24)),
        "'w': data_offsets: .* not a range",
    ),
    "offsets backwards": (
        _ST(safetensors({"w": entry(offsets=[24, 0])}, _24)),
        r"\[24, 0\] is not a range of bytes",
    ),
    "offset negative": (
        _ST(safetensors({"w": entry(offsets=[-24, 0])}, _24)),
        r"\[-24, 0\] is not a range of bytes",
    ),
    "offsets of text": (
        _ST(safetensors({"w": entry(offsets=["0", "24"])}, _24)),
        "is not a range of bytes",
    ),
    "too few bytes": (
        _ST(safetensors({"w": entry(offsets=[0, 20])}, _24)),
        "'w': data_offsets: 20 bytes, but F32",
    ),
    "overlap": (
        _ST(safetensors({"a": entry(), "b": entry(offsets=[12, 36])}, bytes(36))),
        "'b': data_offsets: overlaps",
    ),
    "the same twice": (
        _ST(safetensors({"a": entry(), "b": entry()}, _24)),
        "'b': data_offsets: overlaps",
    ),
    "hole": (
        _ST(safetensors({"w": entry(offsets=[8, 32])}, bytes(32))),
        "'w': data_offsets: leaves 8 bytes",
    ),
    "bytes after the end": (
        _ST(safetensors({"w": entry()}, bytes(25))),
        "1 bytes follow the last tensor",
    ),
    "cut short": (_ST(safetensors({"w": entry()}, bytes(23))), "'w': ends at byte .* cut short"),
    "metadata no texts": (
        _ST(safetensors({"__metadata__": {"a": 1}})),
        "__metadata__: is not an object of strings",
    ),
    "index: folder above": (
        _index({"w": "../a.safetensors"}),
        "'w': weight_map: '../a.s.* is not the name of a file in this folder",
    ),
    "index: absolute": (
        _index({"w": "/etc/passwd"}),
        "'w': weight_map: '/etc/passwd' is not the name of a file in this folder",
    ),
    "index: number": (
        _index({"w": 3}),
        "'w': weight_map: '3' is not the name of a file in this folder",
    ),
    "index: list as file": (
        _index({"w": []}),
        r"'w': weight_map: '\[\]' is not the name of a file in this folder",
    ),
    "index: no such file": (
        _index({"w": "b.safetensors"}),
        "'w': weight_map: the file 'b.s.* is missing",
    ),
    "index: no such tensor": (
        _index({"v": "model-1.safetensors"}),
        "'v': weight_map: is not in model-1",
    ),
    "index: list": (_index(["w"]), "weight_map: is not an object"),
    "index: nothing": (_index({}), "weight_map: is not an object"),
    "index: nested": (
        {"model.safetensors.index.json": _DEEP},
        "JSON: is nested too deeply",
    ),
}

_ONE = [tensor()]
_STRINGS = struct.pack("<IQ", STRING, 3) + text("a") + text("b", 2**63) + text("c")

GGUF: dict[str, tuple[Files, str]] = {
    "cut in the header": (_GG(b"GGUF\x03\0\0\0"), "less than a GGUF header"),
    "counts of 2**62": (
        _GG(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62)),
        "tensor count: 4,611.* at most",
    ),
    "2**63 pairs": (_GG(gguf(pair_count=2**63)), "metadata count: 9,223"),
    "more tensors than bytes": (
        _GG(gguf(tensor_count=1000)),
        "tensor count: 1,000 of them take more",
    ),
    "more pairs than bytes": (
        _GG(gguf(pair_count=1000)),
        "metadata count: 1,000 of them take more",
    ),
    "version 1": (_GG(gguf(version=1)), "version: 1: 2 and 3 are read"),
    "version 99": (_GG(gguf(version=99)), "version: 99"),
    "big-endian": (_GG(gguf(version=3 << 24)), "version: .*big-endian files are not read"),
    "key past the end": (
        _GG(gguf([text(b"", 2**63) + bytes(9)])),
        "metadata key 0: 9,223.* bytes at",
    ),
    "key not UTF-8": (_GG(gguf([text(b"\xff\xfe") + bytes(20)])), "metadata key 0: is not UTF-8"),
    "key twice": (_GG(gguf([pair("a", U32, 1)] * 2)), "metadata 'a': occurs twice"),
    "unknown type": (
        _GG(gguf([text("a") + struct.pack("<I", 77) + bytes(8)])),
        "metadata 'a' type: 77",
    ),
    "text past the end": (
        _GG(gguf([pair("a", STRING, text("x", 2**40))])),
        "metadata 'a': 1,099,511",
    ),
    "array of 2**60": (
        _GG(gguf([pair("a", ARRAY, array(U32, 2**60, bytes(8)))])),
        "metadata 'a' length",
    ),
    "array of unknown": (
        _GG(gguf([pair("a", ARRAY, array(77, 1, bytes(8)))])),
        "metadata 'a' type: 77",
    ),
    "array text past the end": (
        _GG(gguf([pair("a", ARRAY, _STRINGS)])),
        "metadata 'a': a string reaches",
    ),
    "nested arrays": (
        _GG(gguf([pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000 + bytes(64))])),
        "metadata 'a': arrays are nested more",
    ),
    "alignment 0": (
        _GG(gguf([pair("general.alignment", U32, 0)])),
        "'general.alignment': 0 is not a power",
    ),
    "alignment 3": (_GG(gguf([pair("general.alignment", U32, 3)])), "'general.alignment': 3 is no"),
    "alignment huge": (
        _GG(gguf([pair("general.alignment", U32, 2**31)])),
        "2147483648 is not a power",
    ),
    "alignment text": (_GG(gguf([pair("general.alignment", STRING, "32")])), "'32' is not a power"),
    "alignment of a megabyte": (
        _GG(gguf([pair("general.alignment", STRING, "x" * 10**6)])),
        r"'general.alignment': 'xxx.*\.\.\.' is not a power",
    ),
    "2**32-1 dimensions": (
        _GG(gguf([], [tensor(n_dims=2**32 - 1)], _24)),
        "'w': dimensions: 4294967295",
    ),
    "size of 2**63": (
        _GG(gguf([], [tensor(dims=[2**63, 2])], _24)),
        "'w': shape: .* is not a size",
    ),
    "sizes beyond 64 bits": (
        _GG(gguf([], [tensor(dims=[2**33] * 2)], _24)),
        "'w': shape: .* larger than any file",
    ),
    "unknown tensor type": (
        _GG(gguf([], [tensor(kind=99)], _24)),
        "'w': type: GGUF type 99 is unknown",
    ),
    "withdrawn tensor type": (_GG(gguf([], [tensor(kind=4)], _24)), "'w': type: GGUF type 4 is"),
    "no whole blocks": (
        _GG(gguf([], [tensor(dims=[33, 2], kind=2)], _24)),
        "'w': shape: rows of 33",
    ),
    "offset unaligned": (
        _GG(gguf([], [tensor(offset=8)], bytes(64))),
        "'w': offset: 8 is not a multiple",
    ),
    "offset of 2**63": (_GG(gguf([], [tensor(offset=2**63)], _24)), "'w': offset: ends at byte"),
    "cut short": (_GG(gguf([], _ONE, bytes(20))), "'w': offset: ends at byte .* cut short"),
    "tensor twice": (_GG(gguf([], _ONE * 2, _24)), "'w': occurs twice"),
    "overlap": (_GG(gguf([], [tensor("a"), tensor("b")], _24)), "'b': offset: overlaps tensor 'a'"),
    "name past the end": (
        _GG(gguf([], [text(b"", 2**62) + bytes(16)], _24)),
        "name of tensor 0: 4,611",
    ),
    "split without number": (
        _GG(gguf([pair("split.count", U32, 2)], _ONE, _24)),
        "'split.count': 2 files, but the name is not like",
    ),
    "split of text": (
        _GG(gguf([pair("split.count", STRING, "two")], _ONE, _24)),
        "'split.count': 'two' files",
    ),
    "split part missing": (
        {
            "a-00001-of-00002.gguf": gguf(
                [pair("split.count", U32, 2), pair("split.no", U32, 0)], _ONE, _24
            )
        },
        "file 2 of 2, a-00002-of-00002.gguf, is missing",
    ),
    "split out of order": (
        {
            "a-00001-of-00002.gguf": gguf(
                [pair("split.count", U32, 2), pair("split.no", U32, 1)], _ONE, _24
            )
        },
        "'split.no': is not 0",
    ),
    "split count too large": (
        _GG(gguf([pair("split.count", U64, 2**60)], _ONE, _24)),
        "'split.count': 1152921504606846976 files",
    ),
}

RUN_COMMAND = global_name("os", "system") + b"(" + pickled("touch was_run") + b"tR"
_EVAL = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93(" + pickled("open('was_run', 'w')") + b"tR."
_TWO = {"a/data.pkl": b".", "b/data.pkl": b"."}
_F = torch_tensor([2, 3], [3, 1])


# A tuple that contains a tuple twice, and so on: 2**60 elements from 60 instructions.
_DOUBLED = b")" + b"q\x01h\x01\x86" * 60


def _torch(body: bytes) -> Files:
    return _PT(torch_file(state_dict({"w": body})))


PYTORCH: dict[str, tuple[Files, str]] = {
    "half a character": (
        _PT(torch_file(state_dict({"\ud800": torch_tensor((6,), (1,))}))),
        "is a name with half of a surrogate pair, which no file can store",
    ),
    "os.system": (
        _PT(torch_file(b"\x80\x02" + RUN_COMMAND + b".")),
        "asks for 'os.system', .* nothing was executed",
    ),
    "os.system in a dict": (_torch(RUN_COMMAND), "asks for 'os.system'"),
    "builtins.eval": (_PT(torch_file(_EVAL)), "asks for 'builtins.eval'"),
    "INST": (_PT(torch_file(b"(ios\nsystem\n.")), "the instruction INST is not supported"),
    "OBJ": (_PT(torch_file(b"(" + global_name("torch", "Tensor") + b"o.")), "instruction OBJ"),
    "NEWOBJ": (_PT(torch_file(global_name("torch", "Tensor") + b")\x81.")), "instruction NEWOBJ"),
    "EXT1": (_PT(torch_file(b"\x82\x01.")), "instruction EXT1"),
    "persistent text": (_PT(torch_file(b"Pos.system\n.")), "instruction PERSID"),
    "torch.load within": (
        _torch(global_name("torch.storage", "_load_from_bytes")),
        "_load_from_bytes",
    ),
    "no end": (_PT(torch_file(b"\x80\x02}")), "pickle: is damaged"),
    "no instruction": (_PT(torch_file(b"\xff")), "pickle: is damaged"),
    "nothing on the stack": (_PT(torch_file(b"0.")), "pickle: is damaged"),
    "no such memo": (_PT(torch_file(b"h\x05.")), "pickle: is damaged"),
    "call without a function": (
        _PT(torch_file(b"K\x01)R.")),
        "calls an object that is not a function",
    ),
    "text of 2**63 bytes": (
        _PT(torch_file(b"\x8d" + struct.pack("<Q", 2**63 - 1) + b".")),
        "pickle: is damaged",
    ),
    "bare pickle": (_PT(b"\x80\x02}q\x00."), "is a bare pickle, as torch wrote before"),
    "two pickles": (_PT(zipped(_TWO)), "has 2 members data.pkl"),
    "big-endian": (
        _PT(zipped({"a/data.pkl": state_dict({"w": _F}), "a/byteorder": b"big"})),
        "byteorder: is not little-endian",
    ),
    "storage missing": (_PT(torch_file(state_dict({"w": _F}), {})), "'w': storage: '0' is missing"),
    "storage too small": (
        _torch(torch_tensor([3, 3], [3, 1])),
        "'w': size: reaches element 9 of a storage of 6",
    ),
    "offset beyond": (
        _torch(torch_tensor([2, 3], [3, 1], offset=1)),
        "'w': size: reaches element 7",
    ),
    "offset negative": (
        _torch(torch_tensor([2], [1], offset=-1)),
        "'w': storage offset: -1 does not fit",
    ),
    "negative stride": (_torch(torch_tensor([2], [-1])), "'w': stride: -1 is not a size"),
    "negative size": (_torch(torch_tensor([-2], [1])), "'w': size: -2 is not a size"),
    "a billion by stride 0": (
        _torch(torch_tensor([10**9, 2], [0, 1])),
        "'w': stride: repeats elements",
    ),
    "strides too few": (_torch(torch_tensor([2, 3], [1])), "'w': storage offset: .* does not fit"),
    "size no tuple": (
        _torch(torch_tensor([2], [1]).replace(pickled((2,)), pickled("23"), 1)),
        "'w': size: is not a sequence",
    ),
    "size of a million bits": (
        _torch(torch_tensor([1 << 10**6], [1])),
        "'w': size: an integer of 1,000,001 bits",
    ),
    "size of nested tuples": (
        _torch(torch_tensor([0], [1]).replace(pickled((0,)), _DOUBLED, 1)),
        "'w': size: a tuple is no",
    ),
    "offset of nested tuples": (
        _torch(torch_tensor([2], [1], offset=77).replace(pickled(77), _DOUBLED, 1)),
        "'w': storage offset: a tuple does not fit",
    ),
    "key of nested tuples": (
        _PT(torch_file(b"\x80\x02}" + _DOUBLED + b"Ns.")),
        "a key of a dict is neither",
    ),
    "storage of nested tuples": (
        _torch(torch_tensor([2], [1], key="77").replace(pickled("77"), _DOUBLED, 1)),
        "'w': storage: a tuple is missing",
    ),
    "a name a million times": (
        _PT(torch_file(b"\x80\x02}" + pickled("n" * 10**6) + b"](" + b"N" * 10**5 + b"es.")),
        "the name 'nnn.* has more than 1000 characters",
    ),
    "two things of one name": (
        _PT(
            torch_file(
                b"\x80\x02}("
                + pickled("a")
                + b"}"
                + pickled("b")
                + _F
                + b"s"
                + pickled("a.b")
                + _F
                + b"u."
            )
        ),
        "'a.b': occurs twice",
    ),
    "unknown storage": (
        _torch(torch_tensor([2], [1], storage="QInt8Storage")),
        "asks for 'torch.QInt8Storage'",
    ),
    "no storage": (
        _torch(global_name("torch._utils", "_rebuild_tensor_v2") + b"(K\x00K\x00))tR"),
        "'w': pickle: is not built as torch",
    ),
    "compressed storage": (
        _PT(
            zipped(
                {"a/data.pkl": state_dict({"w": _F}), "a/data/0": bytes(2400)}, zipfile.ZIP_DEFLATED
            )
        ),
        "'w': storage: '0' is missing or compressed",
    ),
    "bomb of a pickle": (
        _PT(zipped({"a/data.pkl": bytes(32 << 20)}, zipfile.ZIP_DEFLATED)),
        "data.pkl: 33,554,432 bytes, at most",
    ),
    "pickle of 16 MB in 16 KB": (
        _PT(zipped({"a/data.pkl": b"}" * ((16 << 20) - 1) + b"."}, zipfile.ZIP_DEFLATED)),
        "data.pkl: 16,777,216 bytes, at most 1,048,576 if compressed",
    ),
    "cut short": (_PT(torch_file(state_dict({"w": _F}))[:-30]), "zip directory: is missing"),
    "directory of 2 GB": (
        _PT(zipped({"a/data.pkl": b"."})[:-10] + struct.pack("<IIH", 2**31, 0, 0)),
        "zip directory: 2,147,483,648 bytes, at most",
    ),
    "other zip": (_PT(zipped({"readme.txt": b""})), "with neither a data.pkl"),
    "nested lists": (
        _PT(torch_file(b"\x80\x02" + b"]" * 500 + b"a" * 499 + b".")),
        "nested more than",
    ),
}

NPZ: dict[str, tuple[Files, str]] = {
    "objects": (_NZ(zipped({"w.npy": npy("'|O'")})), "'w': descr: '|O' is not read"),
    "records": (_NZ(zipped({"w.npy": npy("[('a', '<f4')]")})), "'w': header: .* is not"),
    "code as a header": (
        _NZ(zipped({"w.npy": npy("__import__('os').system('id')")})),
        "'w': header",
    ),
    "big-endian": (_NZ(zipped({"w.npy": npy("'>f4'")})), "'w': descr: '>f4' is not read"),
    "complex": (_NZ(zipped({"w.npy": npy("'<c8'")})), "'w': descr: '<c8' is not read"),
    "descr that NumPy evaluates": (
        _NZ(zipped({"w.npy": npy("'<f4, 3)'")})),
        r"'w': descr: '<f4, 3\)' is not read",
    ),
    "texts": (_NZ(zipped({"w.npy": npy("'<U4'")})), "'w': descr: '<U4' is not read"),
    "shape beyond the data": (
        _NZ(zipped({"w.npy": npy(shape="(2, 4)")})),
        "'w': shape: F32 of shape",
    ),
    "shape beyond 64 bits": (
        _NZ(zipped({"w.npy": npy(shape="(" + "9" * 30 + ",)")})),
        "'w': shape: an integer of 100 bits is not a size",
    ),
    "shape of endless digits": (
        _NZ(zipped({"w.npy": npy(shape="(" + "9" * 3000 + ",)")})),
        "'w': ",
    ),
    "shape without commas": (
        _NZ(zipped({"w.npy": npy(shape="(2 3)")})),
        r"'w': header: .*\(2 3\)",
    ),
    "white space that is not ASCII": (
        _NZ(zipped({"w.npy": npy(shape="(2,\x1c3)")})),
        "'w': header: ",
    ),
    "shape of commas": (_NZ(zipped({"w.npy": npy(shape="(,,2,)")})), "'w': header: "),
    "header past the end": (
        _NZ(zipped({"w.npy": b"\x93NUMPY\x01\x00\xff\xff{}"})),
        "'w': header: version 1 and length 65,535",
    ),
    "no array": (_NZ(zipped({"w.npy": b"hello"})), "'w': magic: is not an .npy array"),
    "file of one array": ({"w.npy": npy(shape="(2,)")}, "'w': shape: F32 of shape"),
    "name twice": (
        _NZ(zipped({"a.npy": npy(), "b.npy": npy()}).replace(b"b.npy", b"a.npy")),
        "'a.npy' occurs twice",
    ),
}

_RAW = field(9, _24)


def _outside(location: str, **more: str) -> bytes:
    entries = {"location": location, **more}
    body = b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries.items())
    return onnx_tensor([2, 3], 1, body, field(14, 1))


ONNX: dict[str, tuple[Files, str]] = {
    "cut in the graph": (_OX(onnx(onnx_tensor([2, 3], 1, _RAW))[:-5]), "is not a file of gguf, "),
    "tensor reaches past its graph": (
        _OX(field(1, 9) + field(7, b"\x2a\xff\xff\xff\xff\x0f")),
        "protobuf message: is damaged",
    ),
    "endless varint": (_OX(field(1, 9) + field(7, b"\xff" * 20)), "protobuf message: is damaged"),
    "unknown type": (
        _OX(onnx(onnx_tensor([2, 3], 8, _RAW))),
        "'w': data_type: 8 is a type that lbrx does not read",
    ),
    "negative size": (_OX(onnx(onnx_tensor([-2], 1, _RAW))), "'w': dims: -2 is not a size"),
    "beyond 64 bits": (
        _OX(onnx(onnx_tensor([2**62, 9], 1, _RAW))),
        "'w': dims: .* larger than any file",
    ),
    "many dimensions": (_OX(onnx(onnx_tensor([1] * 1000, 1, _RAW))), "'w': dims: 1000 dimensions"),
    "too few bytes": (_OX(onnx(onnx_tensor([2, 4], 1, _RAW))), "'w': data: F32 of shape"),
    "no data": (_OX(onnx(onnx_tensor([2, 4], 1))), "'w': data: F32 of shape"),
    "twice": (_OX(onnx(*[onnx_tensor([2, 3], 1, _RAW)] * 2)), "'w': occurs twice"),
    "folder above": (_OX(onnx(_outside("../x"))), "'w': external_data location: '../x' is no"),
    "absolute": (_OX(onnx(_outside("/etc/passwd"))), "external_data location: '/etc/passwd' is no"),
    "long name": (
        _OX(onnx(_outside("x" * 256))),
        "external_data location: 'x*...' is not the name of a file",
    ),
    "name with a zero byte": (
        _OX(onnx(_outside("x\0y"))),
        r"external_data location: 'x\\x00y' is not the name of a file",
    ),
    "missing": (_OX(onnx(_outside("x.bin"))), "external_data location: 'x.bin' is missing"),
    "beyond the file": (
        {"a.onnx": onnx(_outside("x.bin", offset="100")), "x.bin": _24},
        "'w': external_data offset: bytes 100 to 124 are not in x.bin",
    ),
    "offset of text": (
        {"a.onnx": onnx(_outside("x.bin", offset="zero")), "x.bin": _24},
        "'w': external_data offset: is not a number",
    ),
}


def _index(file: object) -> bytes:
    return json.dumps({"weight_map": {"w": file}}).encode()


OTHERS: dict[str, tuple[Files, str]] = {
    "index with a long name": (
        {"a.index.json": _index("x" * 256)},
        "'w': weight_map: 'x*...' is not the name of a file in this folder",
    ),
    "index with 255 bytes of a name": (
        {"a.index.json": _index("x" * 255)},
        "'w': weight_map: the file 'x*...' is missing",
    ),
    "index with a long name in other letters": (
        {"a.index.json": _index("ä" * 128)},
        "'w': weight_map: 'ä*...?' is not the name of a file in this folder",
    ),
    "index with a zero byte": (
        {"a.index.json": _index("x\0y")},
        "is not the name of a file in this folder",
    ),
    "text": ({"a.safetensors": b"hello, this is no model"}, "starts with b'hello, t'"),
    "folder without weights": ({"config.json": b"{}"}, "is not a file of gguf, "),
}

TABLES = {
    "safetensors": SAFETENSORS,
    "gguf": GGUF,
    "pytorch": PYTORCH,
    "npz": NPZ,
    "onnx": ONNX,
    "others": OTHERS,
}
ATTACKS = [
    (f"{kind}: {name}", files, message)
    for kind, table in TABLES.items()
    for name, (files, message) in table.items()
]

_HEADS = {
    "attention.head_count": 2,
    "embedding_length": 32,
    "attention.head_count_kv": 2,
    "block_count": 1,
}
# Valid files, from which fuzzing starts.
SOUND: dict[str, bytes] = {
    "a.safetensors": safetensors({"w": entry(), "__metadata__": {"a": "b"}}, _24),
    "a.gguf": gguf(
        [
            pair("general.architecture", STRING, "llama"),
            pair("a.flag", BOOL, True),
            *(pair(f"llama.{key}", U32, number) for key, number in _HEADS.items()),
            pair("tokenizer.ggml.model", STRING, "gpt2"),
            pair(
                "tokenizer.ggml.tokens", ARRAY, array(STRING, 3, text("a") + text("b") + text("ab"))
            ),
            pair("tokenizer.ggml.merges", ARRAY, array(STRING, 1, text("a b"))),
            pair("tokenizer.ggml.token_type", ARRAY, array(I32, 3, struct.pack("<3i", 1, 1, 1))),
            pair("tokenizer.ggml.eos_token_id", U32, 2),
            pair("a.number", F32, 1.5),
            pair("a.texts", ARRAY, array(STRING, 2, text("x") + text("yz"))),
            pair("a.numbers", ARRAY, array(I32, 2, bytes(8))),
        ],
        [
            tensor("token_embd.weight"),
            tensor("blk.0.attn_q.weight", (32, 4), 8, 32),
            tensor("rope_freqs.weight", (2,), 0, 192),
        ],
        bytes(192) + struct.pack("<2f", 1, 8) + bytes(24),
    ),
    "a.pt": torch_file(state_dict({"w": _F, "v": torch_tensor([3, 2], [1, 3])})),
    "a.npz": zipped({"w.npy": npy(), "v.npy": npy(order="True")}),
    "b.npz": zipped({"w.npy": npy(), "v.npy": npy("'<i2'", "(12,)")}, zipfile.ZIP_DEFLATED),
    "a.npy": npy(),
    "a.onnx": onnx(
        onnx_tensor([2, 3], 1, _RAW),
        onnx_tensor([3], 7, field(7, b"\x01\x02\x03"), name="i"),
    ),
}
