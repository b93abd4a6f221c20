"""The token pass: what it reads from a source and what it leaves for clang."""

import pytest

from softmetal.compiler.arithmetic import evaluate
from softmetal.compiler.frontend import rewrite
from softmetal.compiler.tokens import Refusal, tokenize
from softmetal.types import Mode


def words(text):
    return text.split()


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("1.0", "1.0f"), ("1.", "1.f"), (".5", ".5f"), ("1e5", "1e5f"), ("2.5e-3", "2.5e-3f"),
        ("1.0f", "1.0f"), ("1.0F", "1.0f"), ("1.5h", "1.5f16"), ("1.5H", "1.5f16"), ("3h", "3f16"),
        ("2.0bf", "__bf16(2.0)"), ("3BF", "__bf16(3)"), ("0x1p-3", "0x1p-3f"), ("0x1.8p1f", "0x1.8p1f"), ("1'000.5", "1'000.5f"),
        ("7", "7"), ("0xFE", "0xFE"), ("0x1F", "0x1F"), ("12u", "12u"), ("5ul", "5ul"), ("0b101", "0b101"),
    ],
)  # fmt: skip
def test_literals(literal, expected):
    assert rewrite(f"constant auto x = {literal};").text == f"const    auto x = {expected};"


def test_tokens_of_awkward_text():
    text = 'R"(a "b)" vec<vec<a>> "s\\"x" \'c\' a>>=2 .5h\n#pragma x\n'
    assert [t.text for t in tokenize(text)] == [
        'R"(a "b)"', "vec", "<", "vec", "<", "a", ">", ">", '"s\\"x"', "'c'", "a", ">", ">=", "2",
        ".5h", "#pragma x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "value"),
    [("600 + 0", 600), ("(1 << 3) | 2", 10), ("7u", 7), ("6 / 4", 1), ("x", None), ("1 +", None)],
)
def test_arithmetic(expression, value):
    text = [t.text for t in tokenize(expression)]
    assert evaluate(" ".join(text).replace("< <", "<<").split()) == value


def test_indices_are_given_in_order_where_missing():
    source = """
kernel void k(device float* a, constant int& n, device float* b [[buffer(1)]],
              threadgroup float* s, threadgroup int* t, uint i [[thread_position_in_grid]]) {}"""
    parameters = rewrite(source).functions["k"].parameters
    assert [(p.name, p.kind, p.index) for p in parameters[:5]] == [
        ("a", "buffer", 0), ("n", "buffer", 2), ("b", "buffer", 1),
        ("s", "threadgroup", 0), ("t", "threadgroup", 1),
    ]  # fmt: skip


def test_indices_that_constants_and_enums_define():
    source = """
enum Index { kFirst = 2, kSecond }; constant int base = 3 + kFirst; constexpr constant uint top = base * 2;
[[max_total_threads_per_threadgroup(base * 8)]]
kernel void k(device float* a [[buffer(kSecond)]], device float* b [[buffer(top + 1)]]) {}"""
    function = rewrite(source).functions["k"]
    parameters = function.parameters
    assert function.max_total_threads == 40
    assert [(p.name, p.index) for p in parameters] == [("a", 3), ("b", 11)]


@pytest.mark.parametrize(
    ("instantiation", "entry"),
    [
        ('template [[host_name("x")]] kernel void k<half>(device half*, uint);', "k < half >"),
        ('template [[host_name("x")]] [[kernel]] decltype(k<float>) k<float>;', "k < float >"),
        ('typedef decltype(k<float>) k_t; template [[host_name("x")]] kernel k_t k<int, 3>;',
         "k < int , 3 >"),
        ('template [[host_name("" "x" "")]] kernel k_t ns::k<vec<half, 4>>;', "ns::k < vec < half , 4 > >"),
        ('template [[host_name("x")]] kernel void ::ns::k<half>(device half*, uint);', "ns::k < half >"),
        ('namespace n { template [[host_name("x")]] kernel void ::k<half>(device half*, uint); }',
         "k < half >"),
    ],
)  # fmt: skip
def test_instantiations(instantiation, entry):
    source = (
        "template <typename T> kernel void k(device T* a, uint i [[thread_position_in_grid]]) {}\n"
    )
    rewritten = rewrite(source + f"namespace ns {{ {source} }}\n" + instantiation)
    assert {name: f.entry for name, f in rewritten.functions.items()} == {"x": entry}
    assert "host_name" not in rewritten.text


def test_templates_of_one_name_in_two_namespaces():
    source = """
namespace a { template <typename T> kernel void k(device T* x) {} }
namespace b { template <typename T> kernel void k(device T* x, device T* y) {} }
template [[host_name("one")]] kernel void a::k<float>(device float*);
namespace b { namespace c { template [[host_name("two")]] kernel void k<half>(device half*, device half*); } }
"""
    functions = rewrite(source).functions
    assert {n: (f.entry, f.scope, len(f.parameters)) for n, f in functions.items()} == {
        "one": ("a::k < float >", "", 1),
        "two": ("b::k < half >", "b::c", 2),
    }


def test_kernels_in_namespaces_keep_their_path():
    source = "namespace a { namespace b { kernel void k(device float* x) {} } }"
    assert list(rewrite(source).functions) == ["a::b::k"]


MODES = [
    ("x[i] = 1;", "uint i [[thread_position_in_grid]]", Mode.FLAT),
    ("x[i] = 1;", "uint2 i [[thread_position_in_grid]], uint2 n [[threads_per_grid]]", Mode.FLAT),
    ("x[i] = 1;", "uint i [[thread_index_in_threadgroup]]", Mode.GROUPS),
    ("x[i] = s[0];", "uint i [[thread_position_in_grid]], threadgroup float* s", Mode.GROUPS),
    ("x[i] = simd_sum(x[i]);", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    (
        "threadgroup_barrier(mem_flags::mem_none);",
        "uint i [[thread_position_in_grid]]",
        Mode.FIBERS,
    ),
    ("x[i] = outer(x[i]);", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("x[i] = Box().get(x[i]);", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("x[i] = Box().plain(x[i]);", "uint i [[thread_position_in_grid]]", Mode.FLAT),
    ("x[i] = applied<Box>(x[i]);", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("x[i] = Made(x[i]).v;", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("x[i] = Added() + x[i];", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("x[i] = Turned();", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("for (float v : Range()) x[i] = v;", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    ("x[i] = Nested::Inner().own;", "uint i [[thread_position_in_grid]]", Mode.FIBERS),
    (
        "uint simd_lane = i; x[simd_lane] = lonely(1);",
        "uint i [[thread_position_in_grid]]",
        Mode.FLAT,
    ),
]


@pytest.mark.parametrize(("body", "parameters", "mode"), MODES)
def test_mode(body, parameters, mode):
    source = f"""
float inner(float v) {{ return simd_max(v); }}
float outer(float v) {{ return inner(v); }}
float lonely(float v) {{ return v; }}
struct Box {{ float get(float v) {{ return quad_sum(v); }} float plain(float v) {{ return v; }} }};
template <typename T> float applied(float v) {{ return T().get(v); }}
struct Made {{ float v; Made(float x) : v(simd_sum(x)) {{}} }};
struct Added {{ float operator+(float x) {{ return simd_sum(x); }} }};
struct Turned {{ operator float() const {{ return simd_sum(1.0f); }} }};
struct Range {{ const float* begin() {{ return 0 * simd_sum(1.0f); }} const float* end(); }};
struct Nested {{ struct Inner {{ float own = simd_sum(1.0f); }}; }};
template <typename T> kernel void sums(device T* x) {{ x[0] = simd_sum(x[0]); }}
template [[host_name("other")]] kernel void sums<float>(device float*);
kernel void k(device float* x, {parameters}) {{ {body} }}"""
    assert rewrite(source).functions["k"].mode == mode


@pytest.mark.parametrize(
    ("statement", "is_storage"),
    [
        ("threadgroup float s[64];", True),
        ("threadgroup float4 s;", True),
        ("threadgroup atomic_uint a, b;", True),
        ("threadgroup Tile<T, 8> tile[N * (M + 1)];", True),
        ("alignas(16) threadgroup float s[4];", True),
        ("threadgroup float* p = q;", False),
        ("threadgroup float& r = q[0];", False),
        ("auto p = (threadgroup float*) q;", False),
        ("const threadgroup half4 * p = q;", False),
        ("threadgroup float (&a)[4] = b;", False),
        ("f<threadgroup float*>(q);", False),
    ],
)
def test_threadgroup_variables(statement, is_storage):
    text = rewrite(f"kernel void k(device float* x) {{ int z = 0; {statement} }}").text
    assert ("SM_TG" in text) == is_storage
    assert "threadgroup" not in text


def test_overloads_on_address_spaces_become_one():
    source = """
float f(device float* p) { return *p; }
float f(threadgroup float* q) { return *q; }
float f(constant float* p) { return *p; }
float f(const device float* p) { return *p; }
template <typename T> T g(device T* p) { return *p; }
template <typename U> U g(threadgroup U* p) { return *p; }
template <typename T> struct element { };
template <typename T> struct element<device T*> { using type = T; };
template <typename T> struct element<threadgroup T*> { using type = T; };
struct C { C(float v) : v(v) {} C(float v) constant : v(v) {} float v; };
struct S { float get() const device { return 1; } float get() const constant { return 1; } };
struct D { D() thread = default; D() threadgroup = default; D(int) device; D(int) thread; };
"""
    text = rewrite(source).text
    assert text.count("f(") == 2  # one for float*, one for const float*
    assert text.count("g(") == 1
    assert text.count("struct element<") == 1
    assert text.count("get()") == 1
    assert text.count("C(") == 1
    assert text.count("D()") == text.count("D(int)") == 1
    assert text.count("\n") == source.count("\n")


def test_specialisations_keep_their_members():
    source = """
template <typename T> struct A { T get() { return 1; } };
template <> struct A<int> { T get() { return 2; } };
"""
    assert rewrite(source).text == source


def test_function_constants():
    source = """
static constant constexpr const bool fast [[function_constant(0)]];
constant uint4 sizes [[function_constant(600 + 1)]];
constant bool given = is_function_constant_defined(fast) ? fast : true;
float helper() { return given ? 1.0 : 2.0; }
kernel void uses(device float* x, device float* y [[buffer(1), function_constant(fast)]]) { x[0] = helper(); }
kernel void does_not(device float* x) { x[0] = 1; }"""
    rewritten = rewrite(source)
    assert [(c.name, c.type, c.index, c.required) for c in rewritten.constants] == [
        ("fast", "bool", 0, False),
        ("sizes", "uint4", 601, True),
    ]
    assert rewritten.functions["uses"].constants == ("fast",)
    assert rewritten.functions["uses"].parameters[1].condition == "fast"
    assert rewritten.functions["does_not"].constants == ()


def test_indices_may_be_enumerators():
    source = """
enum Slots { first, second = 5, third };
constant constexpr int last = 9;
kernel void k(device float* a [[buffer(first)]], device float* b [[buffer(third)]],
              device float* c [[buffer(last)]]) {}"""
    assert [p.index for p in rewrite(source).functions["k"].parameters] == [0, 6, 9]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel void k(device double* x) {}", "'double' is not supported"),
        ("kernel void k(texture2d<float> t [[texture(0)]]) {}", "textures are not supported"),
        ("kernel void k(sampler s [[sampler(0)]]) {}", "samplers are not supported"),
        (
            "vertex float4 v(uint i [[vertex_id]]) { return 0; }",
            "vertex functions are not supported",
        ),
        ("[[fragment]] float4 f() { return 0; }", "fragment functions are not supported"),
        ("kernel void k(device float* x, uint i) {}", "'i' of kernel 'k' is neither"),
        ("kernel void k(uint i [[vertex_id]]) {}", "attribute 'vertex_id' .* is not supported"),
        ("kernel void k(device float* x [[buffer(N)]]) {}", r"buffer\(N\) is not an integer"),
        ('template [[host_name("x")]] kernel void k<half>(device half*);', "no kernel template"),
    ],
)
def test_refusals(source, message):
    with pytest.raises(Refusal, match=message):
        rewrite(source)


@pytest.mark.parametrize(
    "source", ["", "{", "}", "kernel void k(", "template <", "[[", "a(b[c{", "kernel"]
)
def test_broken_text_is_left_to_clang(source):
    assert rewrite(source).functions == {}


@pytest.mark.parametrize(
    "source",
    [
        "kernel void k(device float* x [[user(a)]]) {}",
        "kernel void k(device float* x [[access(read)]], constant int& n [[vendor::thing]]) {}",
    ],
)
def test_attributes_that_mean_nothing(source):
    ignored = rewrite(source).parsed.ignored
    assert ["unknown attribute" in why.message for why in ignored] == [True] * source.count("[[")
