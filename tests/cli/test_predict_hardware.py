"""`specbench predict --hardware`: a pair before it is measured, from its configurations alone, or from a few layers."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from specbench.jobs import calibrate as job
from specbench.measure import calibrate as measure
from specbench.measure.calibrate import cut, sizes_of
from specbench.models.checkpoints.names import resolve
from specbench.models.scale.shapes import find
from specbench.results.calibration import AtContext
from specbench.spec import RunSpec
from specbench.theory.roofline import Engine
from tests.results.test_forecast import DRAFT, TARGET
from tests.results.test_forecast import pair as linear
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair

SEVEN = ("predict", "--hardware", "h100", "--target", "llama-7b")
H200 = ("predict", "--hardware", "h200", "--target", "llama-7b")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def rows(found: Outcome) -> list[dict[str, str]]:
    assert found.code == 0, found.err
    return list(csv.DictReader(io.StringIO(found.out)))


@pytest.mark.usefixtures("offline")
def test_a_named_pair_is_predicted_from_its_shapes_without_weights_and_hub(command: Command) -> None:
    words = ("--alpha", "0.8", "--k", "4", "--tier", "graph", "--context", "512", "--format", "csv")
    (row,) = rows(command(*SEVEN, *words))
    engine = Engine.of("h100", "graph")
    assert float(row["baseline_step_ms"]) == pytest.approx(1000 * engine.step(TARGET, 512), rel=1e-4)  # norms
    assert float(row["c"]) == pytest.approx(engine.draft(DRAFT, 512) / engine.step(TARGET, 512), rel=1e-3)
    assert float(row["attention_ms"]) == 1000 * engine.attention(TARGET, 512, masked=True)
    assert float(row["attention_unmasked_ms"]) == 1000 * engine.attention(TARGET, 512, masked=False)
    assert (row["hardware"], row["tier"], row["batch"], row["k"]) == ("h100", "graph", "1", "4")
    assert row["basis"].startswith("calculated from constants and shapes; within 5 % of a real one for llama-7b")


@pytest.mark.usefixtures("offline")
def test_tables_have_every_tier_and_context_and_say_what_they_are(command: Command) -> None:
    found = command(*SEVEN, "--k", "1-4", "--alpha", "0.6")
    text, notes = " ".join(found.out.split()), " ".join(found.err.split())
    levels = [(tier, context) for tier in ("eager", "graph", "compile") for context in ("512", "2k", "4k", "32k")]
    assert found.code == 0
    assert all(text.count(f"{tier} {context} 1 ") == 2 for tier, context in levels)  # costs, and choices
    assert "within 5 % of a real one" in text
    assert "on a slow host. Every position has the same alpha" in notes
    assert "never compared with a real NVIDIA H200 SXM" in " ".join(
        command(*H200, "--k", "4", "--alpha", "0.6").out.split()
    )


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("more", "tier"), [((), "graph"), (("--quantize", "int8"), "compile"), (("--draft-quantize", "fp8"), "compile")]
)
def test_auto_is_the_tier_that_a_run_on_a_gpu_would_take(command: Command, more: Sequence[str], tier: str) -> None:
    words = ("--alpha", "0.8", "--k", "4", "--tier", "auto", "--context", "512", "--format", "csv")
    (row,) = rows(command(*SEVEN, *words, *more))
    assert row["tier"] == tier


@pytest.mark.usefixtures("offline")
def test_settings_are_axes_and_change_what_they_should(command: Command) -> None:
    words = ("--alpha", "0.8", "--k", "4", "--tier", "graph,compile", "--context", "512", "--format", "jsonl")
    plain, packed, batched = (
        [json.loads(line) for line in command(*SEVEN, *words, *more).out.splitlines()]
        for more in ((), ("--quantize", "int8"), ("--batch", "1,16"))
    )
    assert [row["tier"] for row in plain] == ["graph", "compile"]
    (slow, fast), (graph, fused) = ([row["baseline_step_ms"] for row in some] for some in (packed, plain))
    assert slow > graph  # the weights are cast in every pass
    assert fast < fused
    assert [(row["tier"], row["batch"]) for row in batched] == [
        ("graph", 1),
        ("graph", 16),
        ("compile", 1),
        ("compile", 16),
    ]
    assert batched[1]["tokens_per_second"] > 5 * batched[0]["tokens_per_second"]


@pytest.mark.usefixtures("offline")
def test_a_folder_is_predicted_and_a_mixture_is_refused(command: Command, pair: Pair, tmp_path: Path) -> None:
    words = ("predict", "--hardware", "4090", *pair.options, "--alpha", "0.5", "--k", "2", "--tier", "eager")
    assert rows(command(*words, "--context", "64", "--format", "csv"))[0]["tier"] == "eager"
    folder = tmp_path / "mixture"
    folder.mkdir()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 64, "num_local_experts": 4}  # fmt: skip
    about = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **sizes}
    (folder / "config.json").write_text(json.dumps(about))
    command("predict", "--hardware", "h100", "--target", folder, "--draft", folder).refused(
        "what a pass of mixtral reads depends on more than sizes", code=4
    )
    (folder / "config.json").write_text(
        json.dumps({**about, "quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    assert "stored as gptq" in command("predict", "--hardware", "h100", "--target", folder, "--draft", folder).line


def test_what_a_pass_reads_is_counted_from_the_configuration() -> None:
    target, draft = sizes_of(RunSpec(target="llama-7b", draft="llama-68m"))
    assert (target.layers, target.head, target.kept, target.groups, target.item) == (
        32,
        TARGET.head,
        TARGET.kept,
        32,
        2,
    )
    assert target.matrices - TARGET.matrices == (2 * 32 + 1) * 4096  # the norms
    assert (draft.layers, draft.kept, draft.groups) == (2, DRAFT.kept, 12)
    tied, _ = sizes_of(RunSpec(target="demo", draft="demo-draft", dtype="float32"))
    assert (tied.head, tied.groups, tied.item) == (4096 * 256, 2, 4)
    assert tied.matrices == 16 * (256 * 64 * 2 * (4 + 2) + 3 * 256 * 640 + 2 * 256) + 256


# --- on this machine --------------------------------------------------------------------------------------------------


def test_a_shape_is_measured_with_as_many_layers_as_hold_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seven, small = cut("llama-7b"), cut("demo@llama-68m")
    assert (seven.deep, seven.shallow, seven.way) == ("demo-draft@llama-7b:2", "demo-draft@llama-7b:1", 31)
    assert (small.deep, small.shallow, small.way) == ("demo-draft@llama-68m:2", "demo-draft@llama-68m:2", 1)
    large = cut("demo@tinyllama-1.1b")
    deep = int(large.deep.partition(":")[2])
    layers = [4 * find(f"tinyllama-1.1b:{n}").parameters for n in (deep, deep + 1)]
    assert layers[0] <= measure.ENOUGH < layers[1]
    assert large.words == f"tinyllama-1.1b with {deep} of 22 layers"
    assert cut("demo") == measure.Cut("demo", "demo", 1.0, "demo")


def test_layers_that_were_measured_give_the_whole_pair(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With times that are linear in layers the prediction of 20 layers is exact, whatever was measured."""
    measured = []

    def timed(spec: RunSpec, contexts: Sequence[int], widths: Sequence[int]) -> tuple[str, list[AtContext]]:
        shapes = [resolve(name).shape for name in (spec.target, spec.draft or "")]
        layers, drafting = (shape.num_hidden_layers for shape in shapes if shape)
        measured.append((layers, drafting, spec.tier, tuple(contexts), tuple(widths)))
        return "compile", [linear(layers, drafting, context) for context in contexts]

    monkeypatch.setattr(job, "timed", timed)
    monkeypatch.setattr(measure, "ENOUGH", 6e8)
    words = ("--target", "llama-300m", "--draft", "llama-68m", "--alpha", "0.8", "--k", "4", "--context", "256,512")
    found = rows(command("predict", "--hardware", "cpu", *words, "--format", "csv"))
    deep, shallow = measured
    assert (deep[0], shallow[0]) == (6, 1)
    assert (deep[1:], shallow[1:]) == ((2, "auto", (256, 512), (1, 2, 3, 5)),) * 2
    whole = linear(20, 2)
    assert [float(row["speedup"]) for row in found] == pytest.approx(2 * [whole.forecast([0.8], [4])[0]["speedup"]])
    assert [row["context"] for row in found] == ["256", "512"]
    assert "llama-300m with 6 of 20 layers" in found[0]["basis"]


def test_models_that_are_here_are_measured_whole(command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "REPEAT", 2)
    words = ("--context", "8", "--k", "2", "--alpha", "0.7", "--tier", "eager", "--format", "csv")
    (row,) = rows(command("predict", "--hardware", "cpu", *pair.options, *words))
    assert (row["tier"], row["context"], row["k"]) == ("eager", "8", "2")
    assert float(row["baseline_step_ms"]) > 0
    assert float(row["c"]) > 0
    assert row["basis"].startswith("extrapolated from layers measured on this machine (target ")
