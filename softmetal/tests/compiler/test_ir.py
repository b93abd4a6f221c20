"""The reader of LLVM IR: what it says of each construct, and that printing loses nothing."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from softmetal.compiler import ir
from softmetal.errors import CompileError
from softmetal.toolchain import clang


def parts(**named):
    return named


# text -> what LLVM's language reference says that it is made of
INSTRUCTIONS = {
    "%1 = add nuw nsw i32 %0, -1, !dbg !5": parts(
        result="%1", opcode="add", flags="nuw nsw ", type="i32", values=["%0", "-1"], debug=", !dbg !5"
    ),
    '%"a b" = fmul fast <4 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0>': parts(
        result='%"a b"', flags="fast ", type="<4 x float>",
        values=["%x", "<float 1.0, float 2.0, float 3.0, float 4.0>"],
    ),
    "%2 = shl <2 x i32> %0, splat (i32 3), !tbaa !1, !dbg !2": parts(
        type="<2 x i32>", values=["%0", "splat (i32 3)"], metadata={"tbaa": "!1", "dbg": "!2"},
        attached=", !tbaa !1, !dbg !2",
    ),
    "%c = icmp samesign ult i64 %a, %b": parts(flags="samesign ult ", type="i64", values=["%a", "%b"]),
    "%c = fcmp true float %a, %b": parts(flags="true ", type="float", values=["%a", "%b"]),
    "%p = load atomic volatile i32, ptr addrspace(1) %q syncscope(\"agent\") monotonic, align 4": parts(
        flags="atomic volatile ", type="i32", values=["%q"], align=4
    ),
    "store <4 x half> zeroinitializer, ptr @x, align 8, !noundef !3": parts(
        result="", type="<4 x half>", values=["zeroinitializer", "@x"], align=8, metadata={"noundef": "!3"}
    ),
    '%p = getelementptr inbounds nuw %"struct.a, b", ptr %q, i64 0, i32 %i': parts(
        flags="inbounds nuw ", type='%"struct.a, b"', values=["%q", "0", "%i"]
    ),
    "store ptr getelementptr inbounds ({ i8, [4 x i8] }, ptr @x, i64 1), ptr %p, align 8": parts(
        type="ptr", values=["getelementptr inbounds ({ i8, [4 x i8] }, ptr @x, i64 1)", "%p"]
    ),
    "%v = phi nsz <2 x float> [ %a, %1 ], [ undef, %\"b c\" ], [ <float 0.0, float 1.0>, %entry ]": parts(
        flags="nsz ", type="<2 x float>", values=["%a", "undef", "<float 0.0, float 1.0>"],
        labels=["%1", '%"b c"', "%entry"],
    ),
    "br label %.loop.exit, !llvm.loop !7": parts(values=[], labels=["%.loop.exit"], metadata={"llvm.loop": "!7"}),
    'br i1 %c, label %a, label %b, !prof !{!"branch_weights", i32 1, i32 4096}': parts(
        type="i1", values=["%c"], labels=["%a", "%b"], metadata={"prof": '!{!"branch_weights", i32 1, i32 4096}'}
    ),
    "switch i32 %x, label %d [\n    i32 0, label %a\n    i32 -7, label %b\n  ], !dbg !1": parts(
        type="i32", values=["%x"], labels=["%d", "%a", "%b"], debug=", !dbg !1"
    ),
    "switch i8 %x, label %d [\n  ]": parts(values=["%x"], labels=["%d"]),
    "%t = trunc nuw nsw i64 %x to i32": parts(flags="nuw nsw ", type="i64", values=["%x"], to="i32"),
    "%g = addrspacecast ptr addrspace(3) @s to ptr": parts(type="ptr addrspace(3)", values=["@s"], to="ptr"),
    "%s = select reassoc i1 %c, { i32, ptr } %a, { i32, ptr } poison": parts(type="i1", values=["%c", "%a", "poison"]),
    "%e = extractvalue { i32, [2 x float] } %a, 1, 0": parts(type="{ i32, [2 x float] }", values=["%a", "1", "0"]),
    "%m = shufflevector <2 x i8> %a, <2 x i8> poison, <3 x i32> <i32 0, i32 1, i32 poison>": parts(
        values=["%a", "poison", "<i32 0, i32 1, i32 poison>"]
    ),
    "%a = alloca [3 x %struct.x], align 16, addrspace(5)": parts(type="[3 x %struct.x]", values=[], align=16),
    "%o = atomicrmw volatile add ptr %p, i32 1 syncscope(\"block\") monotonic, align 4": parts(
        flags="volatile add ", values=["%p", "1"], align=4
    ),
    "%x = cmpxchg weak ptr %p, i32 %a, i32 %b acq_rel monotonic, align 4": parts(flags="weak ", values=["%p", "%a", "%b"]),
    "ret void": parts(type="void", values=[]),
    "ret <{ i8, i32 }> undef": parts(type="<{ i8, i32 }>", values=["undef"]),
    "unreachable": parts(opcode="unreachable", type="", values=[], labels=[]),
    "fence syncscope(\"agent\") seq_cst": parts(opcode="fence", values=[]),
    "%r = tail call fast noundef nofpclass(nan inf) float @llvm.fma.f32(float %a, float noundef 0x3FF0000000000000, float %b) #5, !dbg !9": parts(
        opcode="call", flags="tail fast noundef nofpclass(nan inf) ", type="float",
        callee="@llvm.fma.f32", values=["%a", "0x3FF0000000000000", "%b"], debug=", !dbg !9",
    ),
    'call void @f(ptr dead_on_unwind noalias sret(%"struct.a") align 8 captures(none) %0, i32 range(i32 0, 9) %1)': parts(
        type="void", callee="@f", values=["%0", "%1"]
    ),
    'call void asm sideeffect "st, $0;(\\22", "l,~{memory}"(ptr %p) #3, !srcloc !4': parts(
        type="void", callee='asm sideeffect "st, $0;(\\22", "l,~{memory}"', values=["%p"], metadata={"srcloc": "!4"}
    ),
    "%r = call i32 (ptr, ...) %f(ptr @s, i32 1) [ \"deopt\"(i32 2) ]": parts(
        type="i32 (ptr, ...)", callee="%f", values=["@s", "1"]
    ),
    "call void @llvm.dbg.value(metadata !8, metadata !DIExpression(DW_OP_deref))": parts(
        values=["!8", "!DIExpression(DW_OP_deref)"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_instructions(text):
    read = ir.Instruction("  " + text)
    for name, expected in INSTRUCTIONS[text].items():
        found = getattr(read, name)
        found = [each.value for each in found] if name == "labels" else found
        assert found == expected, name
    for each in (*read.operands, *read.labels):
        assert read.text[each.start : each.end] == each.value
        assert read.with_value(each, each.value).text == read.text
        other = read.with_value(each, "%other")
        assert other.values + [e.value for e in other.labels] == [
            "%other" if e is each else e.value for e in (*read.operands, *read.labels)
        ]


@pytest.mark.parametrize(
    ("value", "opcode", "type", "values"),
    [
        ("ptrtoint (ptr @x to i64)", "ptrtoint", "ptr", ["@x"]),
        ("getelementptr inbounds nuw (i8, ptr @x, i64 4)", "getelementptr", "i8", ["@x", "4"]),
        ("splat (i32 7)", "splat", "i32", ["7"]),
    ],
)
def test_constant_expressions(value, opcode, type, values):
    read = ir.expression(value)
    assert (read.opcode, read.type, read.values) == (opcode, type, values)


@pytest.mark.parametrize("value", ["%x", "@x", "7", "<i32 1, i32 2>", "poison"])
def test_other_values_are_not_expressions(value):
    assert ir.expression(value) is None


MODULE = r"""
%struct.a = type { i32, [2 x float] }
%"struct.b<c, d>" = type <{ i8 }>
$f = comdat any

@tile = internal addrspace(3) global [64 x { i8, float }] poison, section "x", align 16
@"a \22b\22" = private unnamed_addr constant [2 x i8] c"}\0A", align 1
@outside = external thread_local global i32
@alias = alias i32, ptr @outside

; Function Attrs: nounwind
define dso_local ptx_kernel void @"k<1>"(ptr noundef byval(%struct.a) align 8 %l, i32 %0) local_unnamed_addr #0 comdat !dbg !4 {
  switch i32 %0, label %2 [
    i32 1, label %"b c"
  ]

"b c":                                            ; preds = %1
    #dbg_value(i32 %0, !3, !DIExpression(), !5)
  br label %2

2:                                                ; preds = %"b c", %1
  %3 = phi i32 [ 0, %1 ], [ 1, %"b c" ]
  %.x = phi float [ 0.0, %1 ], [ 1.0, %"b c" ]
  ret void
}
declare noundef range(i32 0, 9) i32 @llvm.ctpop.i32(i32) #1
attributes #0 = { nounwind "target-features"="+a,+b" }
!named = !{!0, !3}
!0 = !{ptr @"k<1>", !"a, b", i32 3, !3, null}
!3 = distinct !DISubprogram(name: "k\5C\C3\A9", scope: !4, file: !4, line: 12, flags: A | B, unit: !{!0})
!4 = !DIFile(filename: "a.metal", directory: "")
"""


def test_modules():
    module = ir.Module(MODULE)
    assert list(module.functions) == ["k<1>"]
    assert list(module.declarations) == ["llvm.ctpop.i32"]
    assert list(module.types) == ["struct.a", "struct.b<c, d>"]
    assert list(module.attributes) == ["0"]
    assert list(module.globals) == ["tile", r'a "b"', "outside", "alias"]
    words = ("internal", "addrspace(3)", "global")
    tile = module.variable("tile")
    read = (tile.words, tile.type, tile.value, tile.align)
    assert read == (words, "[64 x { i8, float }]", "poison", 16)
    assert [each.name for each in module.variables()] == ["tile", 'a "b"', "outside"]
    assert module.variable('a "b"').value == r'c"}\0A"'
    assert (module.variable("outside").type, module.variable("outside").value) == ("i32", "")
    assert module.variable("alias") is module.variable("missing") is None
    assert module.node("named").elements == ("!0", "!3")
    assert module.node("0").elements == ('ptr @"k<1>"', '!"a, b"', "i32 3", "!3", "null")
    node = module.node("3")
    assert (node.kind, node.fields["line"], node.fields["unit"]) == ("DISubprogram", "12", "!{!0}")
    assert ir.unquoted(node.fields["name"]) == "k\\é"
    assert module.node("9") is None


APPLE = r"""
define void @k(float addrspace(1)* noundef "air-buffer-no-alias" %0, <3 x i32> %1) #0 {
  %3 = getelementptr inbounds float, float addrspace(1)* %0, i64 0
  %4 = load float, float addrspace(1)* %3, align 4
  ret void
}
!air.kernel = !{!10}
!10 = !{void (float addrspace(1)*, <3 x i32>)* @k, !11, !12}
!11 = !{}
!12 = !{!13}
!13 = !{i32 0, !"air.buffer", !"air.location_index", i32 2, i32 1, !"air.read_write", !"air.arg_name", !"x"}
"""


def test_modules_of_apple():
    """Their pointers have types, and metadata describes the arguments."""
    module = ir.Module(APPLE)
    parameters = module.functions["k"].parameters
    assert [p.type for p in parameters] == ["float addrspace(1)*", "<3 x i32>"]
    assert parameters[0].words == 'noundef "air-buffer-no-alias"'
    step, load, _ = module.functions["k"].instructions()
    assert (step.type, step.values, load.type, load.values) == (
        "float",
        ["%0", "0"],
        "float",
        ["%3"],
    )
    (kernel,) = module.node("air.kernel").elements
    function, outputs, arguments = module.node(kernel[1:]).elements
    assert function.endswith("@k")
    assert module.node(outputs[1:]).elements == ()
    (argument,) = module.node(arguments[1:]).elements
    words = [ir.unquoted(word) for word in module.node(argument[1:]).elements]
    assert words == [
        "i32 0",
        "air.buffer",
        "air.location_index",
        "i32 2",
        "i32 1",
        "air.read_write",
        "air.arg_name",
        "x",
    ]


def test_functions():
    (function,) = ir.Module(MODULE).functions.values()
    assert [p.value for p in function.parameters] == ["%l", "%0"]
    assert function.attributes[:4] == ["local_unnamed_addr", "#0", "comdat", "!dbg"]
    blocks = {block.name: block for block in function.blocks}
    assert list(blocks) == ["", '"b c"', "2"]
    assert blocks[""].successors == ["2", '"b c"']
    assert blocks['"b c"'].successors == ["2"]
    assert blocks["2"].successors == []
    assert [phi.result for phi in blocks["2"].phis] == ["%3", "%.x"]
    assert [each.result for each in function.instructions("phi")] == ["%3", "%.x"]
    opcodes = [each.opcode for each in function.instructions()]
    assert opcodes == ["switch", "#dbg_value", "br", "phi", "phi", "ret"]


def test_changes():
    """What is not changed stays letter by letter."""
    module = ir.Module(MODULE)
    function = module.functions["k<1>"]
    function.rewrite(lambda each: ["%.y = freeze i32 0", each.text.strip()], "ret", "unreachable")
    expected = MODULE.replace("  ret void\n", "  %.y = freeze i32 0\n  ret void\n")
    assert str(module) == expected
    function.blocks = function.blocks
    module.globals["outside"].text = None
    expected = expected.replace("@outside = external thread_local global i32\n", "")
    assert str(module) == expected
    module.append("define void @g() {\n  ret void\n}\n\ndeclare void @h()\n")
    assert list(module.functions) == ["k<1>", "g"]
    assert list(module.declarations) == ["llvm.ctpop.i32", "h"]
    assert str(module) == expected + "\ndefine void @g() {\n  ret void\n}\n\ndeclare void @h()\n"


SOURCE = """
typedef float float4 __attribute__((ext_vector_type(4)));
struct pair { float4 a; char b[3]; };
static const int table[] = {3, 1, 4};
static __thread int local;
extern "C" int puts(const char*);
int pick(int i, _Atomic(int)* a) {
  switch (i) { case 0: return puts("}\\"x\\n"); case 5: return 3; default: break; }
  __c11_atomic_fetch_add(a, 2, __ATOMIC_RELAXED);
  for (int j = 0; j < i; j++) local ^= table[j % 3] >> i;
  return local;
}
extern "C" pair made(pair p, float x) {
  p.a += p.a.wzyx * x / 3;
  p.b[1] = char(__builtin_sqrtf(x)) + (x < 4 ? p.b[0] : 'x');
  asm volatile("# {} (,)" : : "r"(p.b[1]) : "memory");
  return p;
}
"""
FLAGS = {
    "plain": ["-O0"],
    "unoptimised": ["-O3", "-Xclang", "-disable-llvm-passes"],
    "optimised": ["-O3"],
    "debug": ["-O1", "-g"],
    "places": ["-O1", "-gline-tables-only", "-fsanitize=kernel-address"],
    "fast": ["-O2", "-ffast-math", "--target=aarch64-linux-gnu"],
    "nvptx": ["-O2", "--target=nvptx64-nvidia-cuda"],
}


def compiled(name: str) -> str:
    source = SOURCE.replace("__thread", "") if name == "nvptx" else SOURCE
    source = (
        source.replace('"r"', '"h"').replace("p.b[1])", "(short)p.b[1])")
        if name == "nvptx"
        else source
    )
    arguments = ["-x", "c++", "-w", "-S", "-emit-llvm", "-", "-o", "-", *FLAGS[name]]
    return clang.run("clang", arguments, source)[0]


@pytest.mark.parametrize("name", FLAGS)
def test_what_clang_prints(name):
    text = compiled(name)
    module = ir.Module(text)
    assert str(module) == text
    assert len(module.functions) == text.count("\ndefine ") > 1
    for function in module.functions.values():
        body = function.body
        function.blocks = function.blocks
        assert function.body == body
        blocks = {block.name for block in function.blocks}
        assert all(blocks.issuperset(block.successors) for block in function.blocks)
        lines = "\n".join(each.text for each in function.instructions()).split("\n")
        assert lines == [line for line in body.split("\n") if line.startswith("  ")]
    assert all(entry.text and entry.text.startswith("!") for entry in module.metadata.values())


@pytest.mark.parametrize("name", ["optimised", "places", "fast"])
def test_clang_reads_what_is_rewritten(name):
    """Each operand is found: with a `freeze` before each value the code means the same, and clang
    refuses what is not IR."""
    module = ir.Module(compiled(name))
    count = 0

    def frozen(each: ir.Instruction) -> list[str]:
        nonlocal count
        lines = []
        for operand in list(each.operands):
            count += 1
            lines.append(f"%frozen{count} = freeze {each.type} {operand.value}{each.debug}")
            at = each.values.index(operand.value)
            each = each.with_value(each.operands[at], f"%frozen{count}")
        return [*lines, each.text.strip()]

    for function in module.functions.values():
        function.rewrite(frozen, "add", "and", "xor", "shl", "ashr", "fadd", "fmul", "fdiv", "icmp")
    assert count > 4
    clang.run(
        "clang", ["-x", "ir", "-w", "-c", "-", "-o", "/dev/null", *FLAGS[name][2:]], str(module)
    )


def test_damaged_lines():
    """They are read, or refused with an error that shows the line."""
    made = random.Random(7)
    texts = [f"  {text}" for text in INSTRUCTIONS]
    refused = []
    for _ in range(3000):
        text = made.choice(texts)
        first, last = sorted(made.randrange(len(text)) for _ in range(2))
        with suppress(CompileError):
            ir.Instruction(text[:first] + text[last:]).values  # noqa: B018
            continue
        refused.append(text[:first] + text[last:])
    for text in refused:
        with pytest.raises(CompileError, match="cannot read the compiler's output"):
            ir.Instruction(text).values  # noqa: B018
    assert refused


def test_modules_that_end_early():
    for end in range(0, len(MODULE), 7):
        module = ir.Module(MODULE[:end])
        assert str(module) == MODULE[:end]
        for function in module.functions.values():
            assert function.blocks
