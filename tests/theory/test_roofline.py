"""Predictions before any measurement: llama-7b with llama-68m on an H100, term by term; and limits of the formula."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specbench.errors import UsageError
from specbench.files import read_checked
from specbench.theory.formulas import expected_tokens
from specbench.theory.roofline import FILE, Constant, Engine, Reads, Table, shipped

TARGET = Reads(32, 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32000 * 4096, 32 * 2 * 4096, 32, 2)
DRAFT = Reads(2, 2 * (4 * 768**2 + 3 * 768 * 3072), 32000 * 768, 2 * 2 * 768, 12, 2)
GROUPED = Reads(32, 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 128256 * 4096, 32 * 2 * 1024, 8, 2)
CONTEXT, K = 512, 4

# An estimate by hand: 13.21 GB at 88 % of 3.0 TB/s, 2.2 µs for a small kernel in a graph, 6 to 9 µs per eager launch,
# 35 GB/s of keys and values per thread block, which no H100 reaches (`MEASURED`), ten kernels per compiled layer.
# (step ms, draft of 4 ms, c, v, acceptance and host ms, round ms), each from – to as far as it was rounded
BY_HAND = {
    "eager": ((10, 13), (3.5, 4.5), (0.08, 0.09), (1.015, 1.03), (1, 1.3), (16, 18)),
    "graph": ((7.7, 8), (1.15, 1.25), (0.0385, 0.0405), (1.015, 1.025), (0.305, 0.315), (9.35, 9.5)),
    "compile": ((5.5, 6), (0.55, 0.65), (0.0245, 0.0265), (1.0, 1.1), (0.115, 0.125), (6.55, 6.65)),
}
SPEEDUPS = {  # at α 0.55 and 0.8: the speedup, and tokens per second
    "eager": ((1.45, None), (2.3, None)),
    "graph": ((1.75, 225), (2.75, 355)),
    "compile": ((1.85, 320), (2.9, 510)),
}
LAUNCHES = {"graph": (1405, 2030), "compile": (274, 630)}  # the former by operator, 274 as an H100 showed


# results/benchmarks/gpu-h100.md: rounds that read 256 slots, K = 4, tier graph
MEASURED, VERIFY = {"step": 8.22e-3, "c": 0.0393, "v": 1.062, "draft": 1.291e-3}, 8.653e-3


def by_hand(tier: str) -> Engine:
    engine = Engine.of("h100", tier)
    layer = {name: Constant(10, "assumed") for name in ("layer", "verify_layer") if tier == "compile"}
    gpu = engine.gpu.model_copy(update={"block": Constant(35, "assumed")})
    return replace(engine, gpu=gpu, launches=engine.launches.model_copy(update=layer))


def test_the_prediction_is_near_what_an_h100_showed() -> None:
    engine, context = Engine.of("h100", "graph"), 256
    step, token = engine.step(TARGET, context), engine.draft(DRAFT, context)
    verify = engine.verify(TARGET, context, K + 1)
    found = {"step": step, "c": token / step, "v": verify / engine.alone(TARGET, context), "draft": K * token}
    assert found == pytest.approx(MEASURED, rel=0.05)
    assert verify == pytest.approx(VERIFY, rel=0.075)


@pytest.mark.parametrize(("keys", "milliseconds"), [(512, 0.0228), (4096, 0.0495), (16384, 0.1377)])
def test_attention_under_a_mask_takes_what_an_h100_took(keys: int, milliseconds: float) -> None:
    """32 heads of width 128 for one query; of many keys also what merges their parts."""
    engine, layer = Engine.of("h100", "graph"), Reads(1, 0, 0, 2 * 4096, 32, 2)
    assert 1000 * engine.passing(layer, 1, keys, 1) == pytest.approx(milliseconds, rel=0.1)


def terms(tier: str) -> tuple[float, ...]:
    engine = by_hand(tier)
    step, token = engine.step(TARGET, CONTEXT), engine.draft(DRAFT, CONTEXT)
    verify, rest = engine.verify(TARGET, CONTEXT, K + 1), engine.rest()
    v = verify / engine.alone(TARGET, CONTEXT)
    return 1000 * step, 1000 * K * token, token / step, v, 1000 * rest, 1000 * (K * token + verify + rest)


@pytest.mark.parametrize("tier", BY_HAND)
def test_every_term_is_that_of_the_estimate_by_hand(tier: str) -> None:
    for found, (low, high) in zip(terms(tier), BY_HAND[tier], strict=True):
        assert low <= found <= high


@pytest.mark.parametrize("tier", SPEEDUPS)
def test_the_speedup_is_that_of_the_estimate_by_hand(tier: str) -> None:
    step, *_, whole = terms(tier)
    for alpha, (speedup, speed) in zip((0.55, 0.8), SPEEDUPS[tier], strict=True):
        tokens = expected_tokens(alpha, K)
        assert tokens * step / whole == pytest.approx(speedup, rel=0.02)
        assert speed is None or 1000 * tokens / whole == pytest.approx(speed, rel=0.012)


@pytest.mark.parametrize("tier", LAUNCHES)
def test_a_step_and_a_round_launch_as_many_kernels_as_were_counted(tier: str) -> None:
    counts = shipped().launches[tier]
    step = 32 * counts.layer.value + counts.whole.value + counts.step.value
    verify = 32 * counts.verify_layer.value + counts.verify_whole.value
    draft = K * (2 * counts.layer.value + counts.draft_whole.value)
    assert (step, verify + draft + counts.accept.value) == pytest.approx(LAUNCHES[tier], rel=0.05)


@pytest.mark.parametrize(
    ("net", "keys", "bandwidth", "masked"),
    [
        (TARGET, 512, 0.09, (0.2, 0.3)), (TARGET, 2048, 0.4, (0.35, 0.5)), (TARGET, 4096, 0.7, (0.7, 1.0)),
        (TARGET, 32768, 5.7, (5.7, 7.6)), (GROUPED, 512, 0.02, (0.2, 0.3)), (GROUPED, 2048, 0.1, (0.09, 0.15)),
        (GROUPED, 4096, 0.2, (0.17, 0.25)), (GROUPED, 32768, 1.4, (1.4, 1.9)),
    ],
)  # fmt: skip
def test_attention_under_a_mask_is_read_by_one_block_per_key_head_or_part_of_many_keys(
    net: Reads, keys: int, bandwidth: float, masked: tuple[float, float]
) -> None:
    engine, digits = by_hand("graph"), 2 if bandwidth < 0.1 else 1
    assert round(1000 * engine.attention(net, keys, masked=False), digits) == bandwidth
    assert masked[0] <= 1000 * engine.attention(net, keys, masked=True) <= masked[1]


@pytest.mark.parametrize(("kind", "milliseconds"), [("int8", 14), ("fp8", 49), ("int4", 5)])
def test_weights_that_are_cast_in_every_pass_cost_the_cast(kind: str, milliseconds: float) -> None:
    engine = by_hand("graph")
    assert 1000 * engine.step(replace(TARGET, quantised=kind), CONTEXT) == pytest.approx(milliseconds, rel=0.06)
    whole, fused = (Engine.of("h100", "compile").read(replace(TARGET, quantised=q)) for q in (None, "int8"))
    assert fused == pytest.approx(whole / 2, rel=0.03)


def test_many_rows_are_bound_by_arithmetic() -> None:
    """Then K + 1 tokens cost K + 1 times one, and speculation loses."""
    engine = Engine.of("h100", "graph", 65536)
    net = replace(TARGET, kept=0)
    assert engine.verify(net, 0, 5) / engine.alone(net, 0) == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize("gpu", shipped().gpus)
@pytest.mark.parametrize("tier", BY_HAND)
def test_more_of_anything_takes_no_less_time(gpu: str, tier: str) -> None:
    engine = Engine.of(gpu, tier)
    more = [replace(TARGET, **{name: 2 * getattr(TARGET, name)}) for name in ("layers", "matrices", "head", "kept")]
    assert all(engine.step(net, 4096) >= engine.step(TARGET, 4096) for net in more)
    assert all(engine.verify(net, 4096, 5) > engine.verify(TARGET, 4096, 5) for net in more if tier != "eager")
    assert engine.step(TARGET, 8192) >= engine.step(TARGET, 4096)
    assert engine.verify(TARGET, CONTEXT, 6) >= engine.verify(TARGET, CONTEXT, 5) >= engine.alone(TARGET, CONTEXT)
    assert replace(engine, rows=8).step(TARGET, CONTEXT) >= engine.step(TARGET, CONTEXT)
    assert engine.step(replace(TARGET, item=4), CONTEXT) > 0.99 * engine.step(TARGET, CONTEXT)
    faster = replace(engine, gpu=engine.gpu.model_copy(update={"bandwidth": Constant(10**6, "none")}))
    assert faster.step(TARGET, CONTEXT) <= engine.step(TARGET, CONTEXT)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_every_number_has_a_source() -> None:
    table = shipped()
    found = [getattr(one, name) for one in (*table.gpus.values(), *table.launches.values())
             for name in type(one).model_fields if name not in ("title", "compared")]  # fmt: skip
    found += [one for kinds in table.weights.values() for one in kinds.values()]
    assert len(found) > 60
    assert all(one.value > 0 and one.source for one in found)
    assert all(set(kinds) == set(table.launches) for kinds in table.weights.values())


def test_unknown_hardware_and_unknown_kernels_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"unknown hardware 'h1000' \(did you mean h100.*: choose one of h100, .*, cpu$"
    ):
        Engine.of("h1000", "graph")
    with pytest.raises(UsageError, match=r"--quantize w8a8: .* predict int8, fp8, int4 or none$"):
        Engine.of("h100", "graph").read(replace(TARGET, quantised="w8a8"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table["gpus"]["h100"].pop("block"), "gpus.h100.block: Field required"),
        (lambda table: table["gpus"]["h100"].update(block=["much", "?"]), "gpus.h100.block.0"),
        (lambda table: table["gpus"]["h100"].update(speed=[1, "?"]), "gpus.h100.speed: Extra inputs"),
        (lambda table: table["launches"]["graph"].update(layer=42), "launches.eager.layer"),  # graph is the same
    ],
)
def test_a_file_with_a_fault_is_refused_by_its_place(tmp_path: Path, change: object, message: str) -> None:
    table = yaml.safe_load(FILE.read_text())
    change(table)  # type: ignore[operator]
    (tmp_path / "hardware.yaml").write_text(yaml.safe_dump(table))
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        read_checked(tmp_path / "hardware.yaml", Table.model_validate)
