"""How a variant is chosen, and what is said when none can be."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass, replace

import pytest

import lbrx
from lbrx import metal, quant
from lbrx.arrays import dtype as dt
from lbrx.command_lists.builder import Builder
from lbrx.device_info import DeviceKind
from lbrx.kernels import FAMILIES, RUNNERS, deterministic, forced, registry
from lbrx.kernels.arrays import kernel_name, size_class
from lbrx.kernels.attention.attention import AttentionProblem
from lbrx.kernels.matmul.matmul import MatmulProblem, Matrix
from lbrx.kernels.quantized_matmul.quantized_matmul import QuantizedProduct
from lbrx.kernels.registry import TUNED, KernelFamily, computes
from lbrx.ops import TABLE


@dataclass(frozen=True)
class Problem:
    size: int

    @property
    def shape_class(self) -> str:
        return str(self.size)


@pytest.fixture
def family():
    made: KernelFamily[Problem] = KernelFamily("testing")
    made.ran, made.reasons = [], []

    def launch(name):
        def launched(b, problem, *operands):
            made.ran.append((name, problem.size, operands))
            made.reasons.append(b._reason)

        return launched

    made.variant("large", can=lambda info, p: p.size >= 10)(launch("large"))
    made.variant("any", cost=lambda info, p: 2.0)(launch("any"))
    made.variant("split", cost=lambda info, p: 0.5 if p.size >= 100 else 3, batch_invariant=False)(
        launch("split")
    )
    yield made
    del FAMILIES["testing"]


@pytest.mark.parametrize(
    ("size", "name"), [(9, "any"), (10, "large"), (99, "large"), (100, "split")]
)
def test_the_cheapest_that_can(family, size, name):
    family.run(Builder(metal.context()), Problem(size), "x", 3)
    assert family.ran == [(name, size, ("x", 3))]


QUANTIZED = QuantizedProduct(quant.find("q4_0"), 1, 64, 64, dt.float32)
ATTENTION = AttentionProblem(
    *(dt.float32, "float32", 1, 1, 1, 1, 64, 64, 64),
    causal=True,
    window=0,
    scale=1.0,
    cap=0.0,
)
PRODUCT = MatmulProblem(1, 64, 64, dt.float32, Matrix(False, 64), Matrix(True, 64))


@pytest.mark.parametrize(
    ("name", "variant", "problem"),
    [
        ("quantized_matmul", "serial", QUANTIZED),
        ("quantized_matmul", "serial_tiles", QUANTIZED),
        ("attention", "serial", ATTENTION),
        ("attention", "decode_serial", ATTENTION),
        ("matmul", "matvec", PRODUCT),
    ],
)
def test_wide_vectors_are_for_processors(name, variant, problem):
    """The tuner tries whatever can: a GPU's compiler would refuse them."""
    can, info = FAMILIES[name].variants[variant].can, metal.context().info
    assert can(replace(info, simd_hardware=False), problem)
    assert not can(replace(info, simd_hardware=True), problem)


def test_reasons_are_those_of_the_choice(family, monkeypatch):
    """Not of the settings in force when somebody looks at the plan."""
    b, problem = Builder(metal.context()), Problem(500)
    by_cost = "cost 0.5, not large 1, any 2"
    with forced(testing="any"):
        family.run(b, problem)
    with lbrx.deterministic():
        family.run(b, problem)
    family.run(b, problem)
    family.run(b, Problem(50), as_for=Problem(500))
    monkeypatch.setenv("LBRX_KERNEL", "testing:large")
    family.prefer("any", b.info.name, problem.shape_class)
    monkeypatch.delitem(TUNED, (b.info.name, "testing", problem.shape_class))
    assert [reason() for reason in family.reasons] == [
        "forced",
        "cost 1, not any 2",
        by_cost,
        by_cost,
    ]


def test_reasons_are_those_of_one_device(family, monkeypatch):
    b, problem = Builder(metal.context()), Problem(50)
    other = Builder(metal.context())
    other.info = replace(b.info, name="another")
    monkeypatch.setitem(TUNED, ("another", "testing", "50"), "large")
    for each in (b, other):
        family.run(each, problem)
    assert [reason() for reason in family.reasons] == ["cost 1, not any 2, split 3", "tuned"]


def test_a_forced_variant_is_taken_where_it_can(family, monkeypatch, caplog):
    info = metal.context().info
    with forced(testing="any"):
        assert family.choose(info, Problem(50)).name == "any"
        with forced(testing="large", softmax="serial"):
            assert family.choose(info, Problem(50)).name == "large"
            with caplog.at_level(logging.DEBUG, "lbrx"):
                assert family.choose(info, Problem(5)).name == "any"
            assert "testing:large cannot take Problem(size=5)" in caplog.text
        assert family.choose(info, Problem(50)).name == "any"
    monkeypatch.setenv("LBRX_KERNEL", "softmax:serial, testing:any")
    assert family.choose(info, Problem(50)).name == "any"
    with forced(testing="large"):
        assert family.choose(info, Problem(50)).name == "large"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("testing:quick", "LBRX_KERNEL=testing:quick: testing has no such variant, it has large"),
        ("tasting:any", "LBRX_KERNEL=tasting:any: there is no family 'tasting', it is one of"),
        (
            "testing",
            "LBRX_KERNEL='testing': 'testing' does not name a variant: give family:variant",
        ),
    ],
)
def test_a_variant_that_does_not_exist(family, monkeypatch, value, message):
    monkeypatch.setenv("LBRX_KERNEL", value)
    with pytest.raises(lbrx.SettingError, match=message):
        family.choose(metal.context().info, Problem(50))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"testing": "quick"},
            r"^forced\(testing='quick'\): testing has no such variant, it has large",
        ),
        (
            {"tasting": "any"},
            r"^forced\(tasting='any'\): there is no family 'tasting', it is one of",
        ),
    ],
)
def test_forcing_what_does_not_exist_names_the_call(family, given, message):
    with pytest.raises(lbrx.SettingError, match=message):
        forced(**given)


def test_families_that_are_registered_later_can_be_forced_before(family, monkeypatch):
    importlib.import_module("lbrx.kernels.fused_rows.fused_rows")
    assert set(registry.LATER) <= set(registry.FAMILIES)
    monkeypatch.setattr(registry, "FAMILIES", {"testing": family})
    monkeypatch.setenv("LBRX_KERNEL", "rows:any")
    with forced(rows="serial"):
        assert family.choose(metal.context().info, Problem(50)).name == "large"


def test_determinism_leaves_out_what_depends_on_the_batch(family):
    info = metal.context().info
    assert family.choose(info, Problem(100)).name == "split"
    with deterministic():
        assert family.choose(info, Problem(100)).name == "large"
        with forced(testing="split"):
            assert family.choose(info, Problem(100)).name == "large"
    assert family.choose(info, Problem(100)).name == "split"


def test_no_variant_at_all():
    empty: KernelFamily[Problem] = KernelFamily("nothing")
    try:
        empty.variant("never", can=lambda info, p: False)(lambda *_: None)
        with pytest.raises(
            lbrx.DeviceError, match=r"no variant of nothing \(never\) takes Problem"
        ):
            empty.choose(metal.context().info, Problem(1))
    finally:
        del FAMILIES["nothing"]


def test_every_operation_has_a_kernel_and_one_only():
    video = {"video_frames", "video_planes"}  # their kernels are imported when one is needed
    assert RUNNERS.keys() - video == TABLE.keys() - video
    with pytest.raises(ValueError, match="operation add has two kernels"):
        computes("add")(lambda call: ())


def test_every_family_can_be_tuned():
    choosing = {name for name, family in FAMILIES.items() if len(family.variants) > 1}
    # Graphs make these, no operation alone does; lbrx.video has its own when it is imported.
    fused = {"rows", "video_frames", "video_planes"}
    assert {name for name in choosing if FAMILIES[name].samples} == choosing - fused


def test_names():
    assert kernel_name("softmax", "serial", dt.float32) == "softmax_serial_float32"
    assert kernel_name("copy", "", dt.int8, dt.bool_) == "copy_int8_bool"
    assert [size_class(n) for n in (0, 1, 2, 3, 1000)] == ["1", "1", "2", "4", "1024"]
    assert size_class(3, 64) == "4x64"


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("kind", DeviceKind)
def test_a_variant_is_for_a_kind_of_device(monkeypatch, kind, only):
    """Other devices take it last, or not at all."""
    monkeypatch.setattr(registry, "FAMILIES", {})
    family = registry.KernelFamily("kinds")
    family.variant("any", cost=lambda info, problem: 1000.0)(lambda *operands: None)
    family.variant("made", made_for=kind, only=only)(lambda *operands: None)
    processor = replace(metal.context().info, simd_hardware=False, simdgroup_matrix=True)
    gpu = replace(processor, simd_hardware=True, simdgroup_matrix=False)
    tensor = replace(gpu, simdgroup_matrix=True)
    suited = {"wide": [processor], "simd": [gpu, tensor], "tensor": [tensor]}[kind]
    for info in (processor, gpu, tensor):
        assert kind.suits(info) is (info in suited)
        assert family.choose(info, Problem(1)).name == ("made" if info in suited else "any")
        assert family.variants["made"].can(info, Problem(1)) is (info in suited or not only)
