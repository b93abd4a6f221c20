"""Sources that try to leave the kernel, and the part of the error that names what they try."""

from __future__ import annotations

from softmetal.compiler.identity import PACKAGE

KERNEL = "kernel void k(device int* x, uint i [[thread_position_in_grid]]) { %s }\n"
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
PLAIN = KERNEL % "x[i] = 1;"


def body(text: str, before: str = "") -> str:
    return HEAD + before + KERNEL % text


ASSEMBLY = "inline assembly is not supported"
INITIALIZER = "a variable needs a constant initializer"
NOT_FOUND = "file not found"
BUILTIN = " is not supported in Metal: kernels can use Metal's functions, and builtins that"
UNDEFINED = "undefined symbol: "

# name -> (source, text of the error)
ATTACKS: dict[str, tuple[str, str]] = {
    # ---- assembly ----
    "asm": (body('asm volatile("nop");'), ASSEMBLY),
    "asm label of a private function": (
        body("f();", 'void f() __asm("air.wait_simdgroup_events");\n'),
        "illegal string literal in 'asm': 'air.wait_simdgroup_events' is private to Apple's compiler",
    ),
    "__asm": (body('__asm("nop");'), ASSEMBLY),
    "__asm__": (body('__asm__ __volatile__("nop");'), ASSEMBLY),
    "asm from a macro": (body('A("nop");', "#define A asm\n"), ASSEMBLY),
    "asm from pasted tokens": (body('J(__a, sm__)("nop");', "#define J(a, b) a##b\n"), ASSEMBLY),
    "asm over spliced lines": (body('a\\\ns\\\nm("nop");'), ASSEMBLY),
    "asm in a lambda": (body('auto f = [&] { asm("nop"); }; f();'), ASSEMBLY),
    "asm in a template": (body("f<1>();", 'template <int N> void f() { asm("nop"); }\n'), ASSEMBLY),
    "asm of the program": ('asm(".globl a");\n' + PLAIN, ASSEMBLY),
    "asm that reads a file": ('__asm__(".incbin \\"/etc/hostname\\"");\n' + PLAIN, ASSEMBLY),
    "asm label": ('extern "C" int f(const char*) __asm__("system");\n' + PLAIN, ASSEMBLY),
    "asm behind a raw string": (body('f(R"a(" )a"); asm("nop");', "void f(...);\n"), ASSEMBLY),
    "asm behind a quote": (body("char c = '\"'; asm(\"nop\");"), ASSEMBLY),
    "asm behind a separator": (body("int n = 1'0; asm(\"'\");"), ASSEMBLY),
    # ---- code that runs when a library is loaded ----
    "constructor": ("__attribute__((constructor)) static void f() {}\n" + PLAIN, "'constructor'"),
    "__constructor__": (
        "__attribute__((__used__, __constructor__(101))) void f() {}\n" + PLAIN,
        "'__constructor__'",
    ),
    "gnu::constructor": ("[[gnu::constructor]] void f() {}\n" + PLAIN, "constructor'"),
    "using gnu": ("[[using gnu: used, destructor]] void f() {}\n" + PLAIN, "destructor'"),
    "constructor from a macro": (
        "#define A(x) __attribute__((x))\nA(constructor) void f() {}\n" + PLAIN,
        "'constructor'",
    ),
    "constructor in digraphs": ("<:<:gnu::constructor:>:> void f() {}\n" + PLAIN, "digraph"),
    "constructor by pragma": (
        "#pragma clang attribute push(__attribute__((constructor)), apply_to = function)\n" + PLAIN,
        "#pragma clang attribute",
    ),
    "constructor by _Pragma": (
        '_Pragma("clang attribute push(__attribute__((constructor)), apply_to = function)")\n'
        + PLAIN,
        "#pragma clang attribute",
    ),
    "destructor": ("__attribute__((destructor)) void f() {}\n" + PLAIN, "'destructor'"),
    "section": (
        'void f(); __attribute__((used, section(".init_array"))) constant auto p = f;\n' + PLAIN,
        "'section'",
    ),
    "declspec": ('__declspec(allocate(".init_array")) constant int p = 1;\n' + PLAIN, "'allocate'"),
    "init_priority": (
        "struct S { S(); }; __attribute__((init_priority(101))) constant S s;\n" + PLAIN,
        "'init_priority'",
    ),
    "ifunc": ('int f() __attribute__((ifunc("g")));\n' + PLAIN, "'ifunc'"),
    "alias": ('int g() { return 1; } int f() __attribute__((alias("g")));\n' + PLAIN, "'alias'"),
    "cleanup": (body("int n __attribute__((cleanup(f)));", "void f(thread int*) {}\n"), "cleanup"),
    "dynamic initializer": (
        body("x[i] = n;", "int f() { return 1; }\nconstant int n = f();\n"),
        INITIALIZER,
    ),
    "dynamic initializer of a class": (
        body("x[i] = s.n;", "struct S { int n; S() : n(f()) {} int f(); };\nconstant S s;\n"),
        INITIALIZER,
    ),
    "static local": (body("static const int n = x[0]; x[i] = n;"), "constant initializer"),
    "static local behind const": (body("const static int n = x[0]; x[i] = n;"), "constant init"),
    "global destructor": (
        "struct S { int n; ~S() { n = 1; } };\nconstant S s = {1};\n" + PLAIN,
        "cannot have a destructor",
    ),
    "thread-local": ("__thread int n = 1;\n" + PLAIN, "'__thread' is not supported"),
    # ---- builtins ----
    **{
        f"__{name}": (body(text, "typedef __attribute__((ext_vector_type(16))) char V;\n"), f"'__{name}'{BUILTIN}")
        for name, text in {
            "builtin_ia32_fxsave": "__builtin_ia32_fxsave((thread void*)x);",
            "builtin_ia32_xsave64": "__builtin_ia32_xsave64((thread void*)x, 7);",
            "builtin_ia32_writeeflags_u64": "__builtin_ia32_writeeflags_u64(0x40000);",
            "builtin_ia32_wrfsbase64": "__builtin_ia32_wrfsbase64(0);",
            "builtin_ia32_ldmxcsr": "__builtin_ia32_ldmxcsr(0);",
            "builtin_ia32_maskmovdqu": "__builtin_ia32_maskmovdqu(V(1), V(1), (thread char*)x);",
            "builtin_masked_compress_store": "__builtin_masked_compress_store(V(1), V(1), x);",
            "builtin_longjmp": "__builtin_longjmp((thread void**)x, 1);",
            "builtin_setjmp": "thread void* b[5]; x[0] = __builtin_setjmp(b);",
            "builtin_alloca": "x[0] = *(thread int*)__builtin_alloca(x[1]);",
            "builtin_frame_address": "x[0] = (long)__builtin_frame_address(0);",
            "builtin_thread_pointer": "x[0] = (long)__builtin_thread_pointer();",
            "builtin_va_list": "__builtin_va_list l;",
            "builtin_set_flt_rounds": "__builtin_set_flt_rounds(0);",
            "builtin_readcyclecounter": "x[0] = __builtin_readcyclecounter();",
            "builtin_memcmp": "x[0] = __builtin_memcmp(x, x + 1, x[1]);",
            "builtin_printf": '__builtin_printf("%n", x);',
            "builtin_malloc": "x[0] = (long)__builtin_malloc(x[0]);",
            "sync_fetch_and_add": "__sync_fetch_and_add(x, 1);",
            "atomic_store_n": "__atomic_store_n(x, 1, 0);",
            "c11_atomic_store": "__c11_atomic_store((thread _Atomic(int)*)x, 1, 0);",
            "nvvm_membar_gl": "__nvvm_membar_gl();",
        }.items()
    },
    "builtin from pasted tokens": (
        body("J(__builtin_ia32_wr, fsbase64)(0);", "#define J(a, b) a##b\n"), "'__builtin_ia32_wrfsbase64'"
    ),
    "builtin in a template": (
        body("f<1>();", "template <int N> long f() { return __builtin_readcyclecounter(); }\n"),
        "'__builtin_readcyclecounter'",
    ),
    "function of the runtime": (
        body("softmetal_free(x);", 'extern "C" void softmetal_free(void*);\n'), "'softmetal_free'"
    ),
    "array of variable length": (body("int n[x[0]]; x[1] = n[x[2]];"), "arrays of variable length"),
    # ---- hiding from the checks ----
    **{
        f"attribute {name}": (body("f(x);", f"__attribute__(({name})) void f(device int* p) {{ *p = 1; }}\n"),
            f"attribute '{name.partition('(')[0]}'")
        for name in ("nodebug", "disable_sanitizer_instrumentation", 'no_sanitize("kernel-address")',
                     "no_sanitize_address", 'no_builtin("memset")', 'target("xsave")')
    },
    "attribute of a lambda": (body("auto f = []() __attribute__((no_sanitize(\"address\"))) {}; f();"), "'no_sanitize'"),
    "segment": (body("x[0] = *(__attribute__((address_space(257))) int*)0;"), "'address_space'"),
    "segment by its word": ("__seg_fs int* p;\n" + PLAIN, "'address_space'"),
    "line of our trampoline": ('#line 1 "softmetal_entry"\n' + PLAIN, "#line cannot give the name"),
    "line of our headers": (f'#line 1 "{PACKAGE}/x.h"\n' + PLAIN, "#line cannot give the name"),
    "line beside our headers": (f'#line 1 "{PACKAGE}/../softmetal/x.h"\n' + PLAIN, "#line cannot give"),
    # ---- files ----
    "include of an absolute path": ('#include "/etc/hostname"\n' + PLAIN, NOT_FOUND),
    "include in angles": ("#include </etc/hostname>\n" + PLAIN, NOT_FOUND),
    "include of a device": ('#include "/dev/zero"\n' + PLAIN, NOT_FOUND),
    "include of stdin": ('#include "/dev/stdin"\n' + PLAIN, NOT_FOUND),
    "include of a parent": ("#include <../types.py>\n" + PLAIN, NOT_FOUND),
    "include from the current folder": ('#include "pyproject.toml"\n' + PLAIN, NOT_FOUND),
    "include of a macro": ('#define F "/etc/hostname"\n#include F\n' + PLAIN, NOT_FOUND),
    "include_next": ('#include_next "/etc/hostname"\n' + PLAIN, NOT_FOUND),
    "import": ('#import "/etc/hostname"\n' + PLAIN, NOT_FOUND),
    "include in digraphs": ('%:include "/etc/hostname"\n' + PLAIN, NOT_FOUND),
    "include by a macro's hash": ('#define H #\nH include "/etc/hostname"\n' + PLAIN, "directive"),
    "include by a macro's digraph": ('#define H %:\nH include "/etc/hosts"\n' + PLAIN, "digraph"),
    "has_include": (
        '#if !__has_include("/etc/hostname") && !__has_include("/dev/zero")\n#error unseen\n#endif',
        "unseen",
    ),
    "embed": ('constant uchar z[] = {\n#embed "/etc/hostname"\n};\n' + PLAIN, "#embed is not"),
    "embed of a header": ("constant uchar z[] = {\n#embed <metal_stdlib>\n};\n" + PLAIN, "embed"),
    "has_embed": ('#if __has_embed("/dev/zero") != 1\n#error unseen\n#endif', "unseen"),
    "dependency": ('#pragma GCC dependency "/etc/hostname"\n' + PLAIN, ""),
    "module": ('#pragma clang module import "/etc/hostname"\n' + PLAIN, ""),
    # ---- the linker ----
    "library": ('#pragma comment(lib, "c")\n' + PLAIN, "#pragma comment"),
    "weak": ("#pragma weak f = g\n" + PLAIN, "#pragma weak"),
    "system header": ("#pragma GCC system_header\nasm(\"nop\");\n" + PLAIN, ""),
    "marker of our header": ('# 1 "/usr/include/x.h" 3\nasm("nop");\n' + PLAIN, ASSEMBLY),
}  # fmt: skip

# Declared or built-in functions: refused when a kernel that calls them is compiled.
HOST_FUNCTIONS: dict[str, tuple[str, str]] = {
    "exit": (body("exit(3);", 'extern "C" void exit(int);\n'), "exit"),
    "system": (body('x[i] = system(0);', 'extern "C" int system(const constant char*);\n'), "system"),
    "open": (body('x[i] = open(0, 0);', 'extern "C" int open(const constant char*, int);\n'), "open"),
    "mmap": (
        body(
            "x[i] = (long)mmap(0, 1, 1, 1, 1, 1);",
            'extern "C" const void* mmap(const void*, long, int, int, int, long);\n',
        ),
        "mmap",
    ),
    "address of a function": (
        body("x[i] = (int)(long)&dlsym;", 'extern "C" int dlsym(long, const constant char*);\n'),
        "dlsym",
    ),
    "variable": (body("x[i] = *environ;", 'extern "C" { extern const int environ[]; }\n'), "environ"),
    "undefined": (body("x[i] = elsewhere(1);", "int elsewhere(int);\n"), "elsewhere"),
}  # fmt: skip

# What programs write, and must compile: name -> source.
HARMLESS: dict[str, str] = {
    "attributes": body(
        "x[i] = f(1) + P().n;",
        "__attribute__((always_inline, noinline)) int g();\n"
        "[[gnu::always_inline]] static inline __attribute__((pure)) int f(int n) { return n; }\n"
        "struct __attribute__((packed, aligned(4))) P { int n = 2; };\n",
    ),
    "names of attributes": body(
        "int section = 1, alias = 2, constructor = 3; x[i] = section + alias + constructor;"
    ),
    "pragmas": body(
        "\n#pragma unroll\n for (int n = 0; n < 4; n++) x[n] = 0;\n"
        '_Pragma("clang loop unroll(disable)") for (int n = 0; n < 4; n++) x[n] = 0;\n',
        '#pragma once\n#pragma mark - kernels\n#pragma clang diagnostic ignored "-Wunused"\n'
        "#pragma unknown thing\n#pragma METAL fp math_mode(safe)\n#pragma pack(push, 1)\n"
        "#pragma ivdep\n#pragma pack(pop)\n#pragma clang fp contract(off)\n",
    ),
    "constants": body(
        "static constant int s = 3; static constexpr constant float t[2] = {1, 2};\n"
        "x[i] = v.x + w[1].y + h + m[0][0] + p.x + b + e + twice(3) + q + s + t[1] + Q<int>::w;",
        "constant float4 v = float4(1, 2, 3, 4); constant float2 w[2] = {float2(1), {2, 3}};\n"
        "constant half h = half(2.0); constant float3x3 m = float3x3(1);\n"
        "constant packed_float3 p = packed_float3(1); constant bfloat b = bfloat(1.5);\n"
        "constant float e = -INFINITY + M_PI_F / 2 + numeric_limits<float>::max();\n"
        "constexpr int twice(int n) { return 2 * n; }\nconstant int q = twice(4);\n"
        "template <typename T> struct Q { static constant T w; };\n"
        "template <typename T> constant T Q<T>::w = T(4);\n",
    ),
    "threadgroup variables of classes": body(
        "threadgroup S s; threadgroup float4 t[4]; s.a = x[i]; t[0] = 0; x[i] = s.a + t[0].x;",
        "struct S { int a; float4 v; half2x2 m; };\n",
    ),
    "templates in a namespace": body("x[i] = a::f<::b>(b());", "struct b { int n = 1; };\n"
        "namespace a { template <typename T> int f(T t) { return t.n; } }\n"),
    "builtins": body(
        "float f = __builtin_fmaf(x[0], 2, __builtin_inff()); int n; V v(x[0]);\n"
        "x[0] = __builtin_popcount(x[1]) + __builtin_clz(x[2] | 1) + __builtin_isnan(f) + __builtin_bswap32(x[3]);\n"
        "if (__builtin_expect(__builtin_add_overflow(x[0], 1, &n), 0)) n = __builtin_bit_cast(int, f);\n"
        "__builtin_assume(n > 0); __builtin_memcpy(x, &n, 4); __builtin_prefetch(x);\n"
        "v = __builtin_elementwise_max(v, __builtin_shufflevector(v, v, 3, 2, 1, 0));\n"
        "x[2] = __builtin_reduce_add(v) + int(__builtin_constant_p(n)) + __builtin_rotateleft32(n, 3);\n",
        "typedef __attribute__((ext_vector_type(4))) int V;\n",
    ),
    "functions that end a kernel": body("if (x[i] > 3) __builtin_trap(); x[i] = 1;"),
    "a raw string that looks like a marker": body(
        'log(R"(\n# 1 "a" 3\n# x\n)"); x[i] = 1;', "void log(const constant char*) {}\n"
    ),
    "a line of another file": '#line 7 "a\\"b<c>"\n' + body("x[i] = 1;"),
    "a line of a generator": '#line 1 "<string>"\n' + body("x[i] = 1;"),
    "lines of several files": '#line 1 "a.metal"\n' + body(
        "x[i] = f(1);", 'int f(int n) { return n; }\n#line 1 "program_source"\n'
    ),
    "a line of a device": '#line 1 "/dev/zero"\n' + body("x[i] = 1;"),
    "a local function named asm-like": body("x[i] = basm(1);", "int basm(int n) { return n; }\n"),
}  # fmt: skip
