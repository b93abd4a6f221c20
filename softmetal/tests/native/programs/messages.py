"""Messages by ctypes, as programs on macOS send them. Runs under `python -m softmetal run`."""

import ctypes
import ctypes.util
import platform

objc = ctypes.CDLL(ctypes.util.find_library("objc"))
metal = ctypes.CDLL("/System/Library/Frameworks/Metal.framework/Metal")
system = ctypes.CDLL("/usr/lib/libSystem.dylib")
objc.sel_registerName.restype = objc.objc_getClass.restype = ctypes.c_void_p
metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p


class Size(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("width", "height", "depth")]


def send(receiver, selector, result, *arguments):
    large = isinstance(result, type) and issubclass(result, ctypes.Structure)
    function = objc[
        "objc_msgSend_stret" if large and platform.machine() == "x86_64" else "objc_msgSend"
    ]
    name = ctypes.c_void_p(objc.sel_registerName(selector.encode()))
    if function.__name__ == "objc_msgSend_stret":
        value = result()
        function(ctypes.byref(value), ctypes.c_void_p(receiver), name, *arguments)
        return value
    function.restype = result
    return function(ctypes.c_void_p(receiver), name, *arguments)


device = metal.MTLCreateSystemDefaultDevice()
buffer = send(
    device, "newBufferWithLength:options:", ctypes.c_void_p, ctypes.c_uint64(64), ctypes.c_uint64(0)
)
address = send(buffer, "contents", ctypes.c_void_p)
(ctypes.c_uint32 * 16).from_address(address)[15] = 7
most = send(device, "maxThreadsPerThreadgroup", Size)
name = send(send(device, "name", ctypes.c_void_p), "UTF8String", ctypes.c_char_p)
assert send(buffer, "length", ctypes.c_uint64) == 64
assert most.width == 1024
assert name
assert platform.mac_ver()[0]
assert objc.objc_getClass(b"NoSuchClass") is None
send(buffer, "release", None)
print("sent")
