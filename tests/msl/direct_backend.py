import ctypes, re, subprocess, tempfile, pathlib, sysconfig
import numpy as np
ZIG = next(pathlib.Path(sysconfig.get_paths()["purelib"]).glob("ziglang/zig"))
INCLUDE = pathlib.Path(__file__).parents[2] / "src/softmetal/include"
FLAGS = ("--target=x86_64-linux-gnu -x c++ -std=c++17 -O3 -march=x86-64-v3 -fPIC -fdeclspec "
  "-fconvergent-functions -fno-exceptions -fno-rtti -Xclang -ffloat16-excess-precision=none -nostdinc -nostdlibinc").split()
class Refused(Exception): pass
def lower(text):
    text = re.sub(r"\[\[.*?\]\]", "", text)
    text = re.sub(r"\b(kernel|device|thread|threadgroup)\b", "", text)
    text = re.sub(r"\bconstant\b", "const", text)
    num = r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    text = re.sub(num + r"(?![\w.])", r"\1f", text)
    text = re.sub(num + r"h\b", r"\1f16", text)
    return re.sub(num + r"bf\b", r"\1bf16", text)
def build(text, fast_math):
    text = lower(text)
    for name in re.findall(r"\n *void (\w+)\(", text):
        if name != "batch": continue
        text += 'extern "C" void run_batch(uchar* out, const uchar* in, uint n) { for (uint i = 0; i < n; i++) batch(out, in, i); }\n'
    text += 'extern "C" __bf16 __truncsfbf2(float x) { uint u = __builtin_bit_cast(uint, x); u = x != x ? u | 0x400000u : u + 0x7fff + ((u >> 16) & 1); return __builtin_bit_cast(__bf16, (ushort)(u >> 16)); }\n'
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "u.cpp").write_text(text)
    fast = ["-ffast-math", "-fno-finite-math-only"] if fast_math else []
    r = subprocess.run([ZIG, "clang", *FLAGS, *fast, "-isystem", INCLUDE, "-c", "-o", folder / "u.o", folder / "u.cpp"], capture_output=True, text=True)
    if r.returncode: raise Refused(r.stderr)
    subprocess.run([ZIG, "ld.lld", "-shared", "-o", folder / "u.so", folder / "u.o"], check=True)
    return ctypes.CDLL(str(folder / "u.so"))
def run(text, name, buffers, n, fast_math):
    library = build(text, fast_math)
    aligned = []
    for b in buffers:
        raw = np.zeros(b.nbytes + 64, np.uint8); off = -raw.ctypes.data % 64
        a = raw[off:off + b.nbytes].view(b.dtype); a[:] = b.reshape(-1); aligned.append(a)
    library.run_batch(ctypes.c_void_p(aligned[0].ctypes.data), ctypes.c_void_p(aligned[1].ctypes.data), ctypes.c_uint(n))
    buffers[0][:] = aligned[0]
