"""Models besides target and draft, named by whoever runs them: from --model to the columns of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM

from specbench.backends.native import open_pair
from specbench.backends.roles import kept_layers, stands_for, trail
from specbench.measure.grid import cells
from specbench.measure.parsing import with_models
from specbench.results.reading import read_run
from specbench.spec import RunSpec, named_models, written_models
from tests.support.checkpoints import llama
from tests.support.frontdoor import SHORT, Command
from tests.support.tinypair import CONTEXT, EOS, Pair, change_weights, prompts, save_tokenizer


def chain_of(model: str) -> dict[str, Any]:
    return {"ModelDrafter": {"model": model, "k": "k"}}


def method_file(folder: Path, drafter: Any, name: str = "mine") -> Path:
    method = {"Speculate": {"drafter": drafter, "model": "target", "verifier": "Rejection"}}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"summary": "mine", "paper": "none", "lossless": True, "method": method}))
    return file


def merge_of(*models: str) -> dict[str, Any]:
    return {"Merge": {"drafters": [chain_of(model) for model in models]}}


CASCADE = {
    "Speculate": {"drafter": chain_of("draft"), "model": "middle", "verifier": "Rejection", "length": 3},
}


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Path:
    """A third checkpoint for the tiny pair: the target with some noise on its weights."""
    folder = tmp_path_factory.mktemp("second") / "second"
    model = LlamaForCausalLM.from_pretrained(pair.target)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    generator = torch.Generator().manual_seed(3)

    def noise(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight + 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)

    change_weights(folder, noise)
    return folder


# --- as settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ["b=x/y", "a=target[:3,7:]"],
        {"a": "target[:3,7:]", "b": "x/y"},
        [("b", "x/y"), ["a", "target[:3,7:]"]],
        "a=target[:3,7:],b=x/y",
    ],
)
def test_models_are_pairs_in_the_order_of_their_names(given: Any) -> None:
    spec = RunSpec(model=given)
    assert spec.model == (("a", "target[:3,7:]"), ("b", "x/y"))
    assert hash(spec) == hash(RunSpec(model={"b": "x/y", "a": "target[:3,7:]"}))
    assert spec.model_dump(mode="json")["model"] == written_models(spec.model) == "a=target[:3,7:],b=x/y"
    assert RunSpec(**json.loads(spec.model_dump_json())) == spec == spec.with_(k=spec.k)
    assert spec.key != RunSpec().key != RunSpec(model={"a": "x/y"}).key
    with pytest.raises(ValueError, match="is not NAME=CHECKPOINT"):
        RunSpec(model=["second"])


def test_a_spec_without_further_models_keeps_the_key_that_it_always_had() -> None:
    spec = RunSpec(target="demo", draft="demo-draft", limit=3, max_new_tokens=24, dtype="float64", warmup=0, k=1)
    assert spec.key == "fb36ff2d41b0"  # of results/baseline
    assert spec.model_dump(mode="json")["model"] is None
    assert RunSpec(model=None) == RunSpec(model=[]) == RunSpec(model={}) == RunSpec()


def test_a_mapping_is_one_setting_and_a_list_of_mappings_is_an_axis() -> None:
    assert with_models({"k": 2}) == {"k": 2}
    assert with_models({"model": ["a=x/y", "b=z/y"]})["model"] == (("a", "x/y"), ("b", "z/y"))
    assert with_models({"model": {"a": "x/y"}})["model"] == named_models("a=x/y")
    axis = with_models({"model": [{"a": "x/y"}, {"a": "x/z"}], "dataset": "code", "k": [1, 2]})
    found = cells(axis)
    assert len(found) == 4
    assert {spec.model for spec in found} == {(("a", "x/y"),), (("a", "x/z"),)}
    assert all(spec.baseline.model == spec.model for spec in found)  # as with the draft: one baseline per loaded pair


# --- names that lead to others ----------------------------------------------------------------------------------------

GIVEN = {"second": "x/y", "skip": "target[:2,3:]", "less": "skip[:50%]", "part": "second[:1]", "odd": "elsewhere[:1]"}


@pytest.mark.parametrize(
    ("name", "names", "layers"),
    [
        ("second", ["second"], [0, 1, 2, 3, 4]),
        ("second[:50%]", ["second[:50%]", "second"], [0, 1, 2]),
        ("skip", ["skip", "target[:2,3:]", "target"], [0, 1, 3, 4]),
        ("less", ["less", "skip[:50%]", "skip", "target[:2,3:]", "target"], [0, 1]),
        ("skip[1:3]", ["skip[1:3]", "skip", "target[:2,3:]", "target"], [1, 3]),
        ("odd", ["odd"], [0, 1, 2, 3, 4]),  # a checkpoint with a strange name
        ("draft", ["draft"], [0, 1, 2, 3, 4]),
    ],
)
def test_a_name_leads_to_a_checkpoint_and_says_which_layers_are_kept(
    name: str, names: list[str], layers: list[int]
) -> None:
    assert trail(name, GIVEN, "mine") == names
    assert kept_layers(names, 5) == layers
    assert stands_for(names[-1], GIVEN) is None


# --- through the front door -------------------------------------------------------------------------------------------


@pytest.mark.processor
def test_two_small_models_of_ones_own(run: Command, second: Path, tmp_path: Path) -> None:
    found = run("--method", method_file(tmp_path, merge_of("draft", "second")), "--model", f"second={second}")
    row = found.row()
    assert (row["status"], row["lossless"], row["model"]) == ("ok", "identical", f"second={second}")
    assert (row["second_source"], row["second_commit"], row["second_dtype_resolved"]) == (str(second), "", "float32")
    assert row["draft_source"].endswith("draft")
    described = json.loads((found.folder / "run.json").read_text())
    assert RunSpec(**described["specs"][0]).key == row["cell"]
    assert [cell.spec.model for cell in read_run(found.folder).cells] == [(("second", str(second)),)]


def test_a_cascade_of_three_models(run: Command, second: Path, tmp_path: Path) -> None:
    file = method_file(tmp_path, CASCADE)
    row = run("--method", file, "--model", f"middle={second}", "--temperature", "1", "--max-new-tokens", "16").row()
    assert (row["status"], row["middle_source"]) == ("ok", str(second))
    assert 1 < float(row["tokens_per_round"]) <= 4


@pytest.mark.processor
def test_layers_of_another_model_by_a_name_and_in_the_method_file(run: Command, second: Path, tmp_path: Path) -> None:
    file = method_file(tmp_path, merge_of("skip", "second[:50%]", "target[:1]"))
    row = run("--method", file, "--model", "skip=target[1:]", "--model", f"second={second}").row()
    assert (row["lossless"], row["model"]) == ("identical", f"second={second},skip=target[1:]")
    assert "skip_source" not in row
    assert "draft_source" not in row


@pytest.mark.slow
def test_a_sweep_over_k_and_a_grid_with_a_mapping(command: Command, pair: Pair, second: Path, tmp_path: Path) -> None:
    data, file = prompts(tmp_path / "words.jsonl", 4, 6), method_file(tmp_path, merge_of("draft", "second"))
    grid = {"target": str(pair.target), "draft": str(pair.draft), "model": {"second": str(second)}, "dataset": data,
            "method": ["chain", "baseline", str(file)], "k": [1, 2], "max_new_tokens": 6, "warmup": 0}  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    found = command("sweep", "grid.yaml").ok()
    assert [row["method"] for row in found.table()] == ["chain", "chain", "baseline", str(file), str(file)]
    assert {row["second_source"] for row in found.table()} == {str(second)}
    command("sweep-k", *pair.options, "--model", f"second={second}", "--method", file, "--dataset", data,
                    *SHORT[:-2], "--k", "1,2", "--output-dir", "other").ok()  # fmt: skip


@pytest.mark.slow
def test_an_axis_of_models_has_cells_and_baselines_of_their_own(
    command: Command, pair: Pair, second: Path, tmp_path: Path
) -> None:
    data, file = prompts(tmp_path / "words.jsonl", 4, 6), method_file(tmp_path, merge_of("draft", "second"))
    grid = {"target": str(pair.target), "draft": str(pair.draft), "dataset": data, "method": str(file), "k": 2,
            "model": [{"second": str(second)}, {"second": "target[:1]"}], "max_new_tokens": 6, "warmup": 0}  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    found = command("sweep", "grid.yaml", "--output-dir", "results").ok()
    assert [row["model"] for row in found.table()] == [f"second={second}", "second=target[:1]"]
    assert [row["second_source"] for row in found.table()] == [str(second), ""]
    command("compare", "--checks", "deterministic", found.folder, found.folder).ok()


def test_a_trace_names_its_models(command: Command, pair: Pair, second: Path, tmp_path: Path) -> None:
    file = method_file(tmp_path, merge_of("draft", "second"))
    found = command("trace", "--prompt", "w1 w2 w3", *pair.options, "--method", file, "--model", f"second={second}",
                    "--max-new-tokens", 6, "--k", 2, "--format", "json").ok()  # fmt: skip
    assert json.loads(found.out)["settings"]["second"] == str(second)


def test_every_model_is_checked_against_the_target(run: Command, pair: Pair, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shape = {"max_position_embeddings": CONTEXT, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": None}
    LlamaForCausalLM(llama(**shape)).save_pretrained(other)
    save_tokenizer(other, "x{}")
    run("--method", method_file(tmp_path, merge_of("draft", "other")), "--model", f"other={other}").refused(
        "target and other have different tokenizers", "without a token in common", code=4
    )


def test_a_model_has_the_dtype_of_drafts_and_may_bound_the_context(pair: Pair, second: Path, tmp_path: Path) -> None:
    file = method_file(tmp_path, merge_of("draft", "second"))
    pairs = {"target": str(pair.target), "draft": str(pair.draft), "model": {"second": str(second)}}
    spec = RunSpec(**pairs, method=str(file), dtype="float64")
    assert {str(role.dtype) for role in open_pair([spec]).pair.roles.values()} == {"torch.float64"}
    roles = open_pair([spec.with_(draft_dtype="bfloat16")]).pair.roles
    assert {name: str(role.dtype) for name, role in roles.items()} == {
        "target": "torch.float64", "draft": "torch.bfloat16", "second": "torch.bfloat16",
    }  # fmt: skip
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32}))
    backend = open_pair([spec])
    (second / "config.json").write_text(json.dumps(config))
    assert backend.context == 32
    assert "the second reads 32 tokens only" in backend.warnings[0]
