"""`specbench models`: the list of names, and scale models as folders that other engines load."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from specbench.models.checkpoints import names, write_scale_model
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import resolve
from specbench.models.scale import growth, shapes
from specbench.models.scale.shapes import Shape
from tests.support.checkpoints import CPU, save_tiny
from tests.support.frontdoor import Command, Outcome

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
         "tokenizer_config.json"}  # fmt: skip
MINI = Shape(name="mini", hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, vocab_size=100)  # fmt: skip
Grow = Callable[..., Outcome]


@pytest.fixture
def grow(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Grow:
    """`specbench models grow` of a tiny checkpoint to a tiny shape, into `out` unless the arguments say otherwise."""
    known: Mapping[str, Shape] = {**shapes.shapes(), "mini": MINI}
    monkeypatch.setattr(shapes, "shapes", lambda: known)
    save_tiny(tmp_path / "tiny")
    return lambda *arguments, out="out": command(
        "models", "grow", "--from", "tiny", "--like", "mini", "--output", out, *arguments
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_has_every_alias_and_every_shape_with_its_size(command: Command) -> None:
    found = command("models", "list").ok()
    lines = found.out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in (*names.aliases(), *shapes.shapes()))
    (line,) = [line for line in lines if "6,738,415,616" in line]
    assert line.split()[:3] == ["llama-7b", "6,738,415,616", "13.48"]
    assert command("models") == found
    assert all(name in command("models", "--help").out for name in ("list", "grow"))


def test_the_list_is_data_in_every_other_format(command: Command) -> None:
    rows = json.loads(command("models", "list", "--format", "json").out)
    assert [json.loads(line) for line in command("models", "list", "--format", "jsonl").out.splitlines()] == rows
    table = list(csv.DictReader(io.StringIO(command("models", "list", "--format", "csv").out)))
    assert [row["name"] for row in table] == [row["name"] for row in rows]
    (demo,) = [row for row in rows if row["name"] == "demo"]
    assert demo == {"kind": "alias", "name": "demo", "source": "shipped", "draft": "demo-draft",
                    "note": "shipped with specbench"}  # fmt: skip
    (shape,) = [row for row in rows if row["name"] == "llama3-8b" and row["kind"] == "shape"]
    assert (shape["parameters"], shape["bf16_gb"], shape["heads"]) == (8_030_261_248, 16.06, "32/8 × 128")
    assert "| llama-300m | 322,479,104 |" in command("models", "list", "--format", "md").out


# --- a folder ---------------------------------------------------------------------------------------------------------


def test_a_grown_folder_is_a_checkpoint_like_any_other(grow: Grow) -> None:
    found = grow()
    assert (found.code, found.out) == (0, "out\n")
    assert "scale model: the function of tiny at the cost of mini" in found.err
    folder = found.cwd / "out"
    assert {path.name for path in folder.iterdir()} == FILES
    config = json.loads((folder / "config.json").read_text())
    assert config[growth.KEY] == {"from": "tiny", "like": "mini", "vocabulary": 64, "notes": []}
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert {w.dtype for w in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert "# tiny@mini: a scale model" in (folder / "README.md").read_text()
    assert str(found.cwd) not in "".join(
        (folder / name).read_text() for name in FILES if not name.endswith(".safetensors")
    )


@torch.inference_mode()
def test_transformers_loads_it_and_it_says_what_the_original_says(grow: Grow) -> None:
    folder = grow("--dtype", "float64").cwd / "out"
    small, large = (
        transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64)
        for place in (folder.parent / "tiny", folder)
    )
    ids = torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(0))
    p, q = (model(ids).logits.softmax(-1) for model in (small, large))
    assert (p - q[..., :64]).abs().sum(-1).max() < 1e-6
    assert q[..., 64:].max() == 0
    words = [
        transformers.AutoTokenizer.from_pretrained(place).get_vocab() for place in (folder.parent / "tiny", folder)
    ]
    assert words[0] == words[1]


def test_a_grown_folder_equals_the_model_in_memory_and_is_recognised(grow: Grow, tmp_path: Path) -> None:
    grow("--dtype", "float32")
    folder = resolve(str(tmp_path / "out"))
    assert growth.label(load_config(folder)) == "tiny@mini"
    written, made = (load_model(c, torch.float32, CPU) for c in (folder, resolve(f"{tmp_path / 'tiny'}@mini")))
    assert written.warnings[0].endswith("scale model: the function of tiny at the cost of mini; acceptance is the "
                                        "small pair's")  # fmt: skip
    assert written.model.config.to_dict() == made.model.config.to_dict() | {"_name_or_path": str(tmp_path / "out")}
    state = made.model.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in written.model.state_dict().items())
    assert load_tokenizer(folder).get_vocab() == {"a": 0, "b": 1, "c": 2}


def test_the_same_arguments_give_the_same_bytes_and_shards_the_same_weights(grow: Grow, tmp_path: Path) -> None:
    for out, size in (("one", "5GB"), ("two", "5GB"), ("shards", "20KB")):
        assert grow("--max-shard-size", size, out=out).code == 0
    assert content(tmp_path / "one") == content(tmp_path / "two")
    parts = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    assert len(parts) > 2
    whole = load_file(tmp_path / "one" / "model.safetensors")
    pieces: dict[str, Any] = {name: w for part in parts for name, w in load_file(part).items()}
    assert set(pieces) == set(whole)
    assert all(torch.equal(pieces[name], whole[name]) for name in whole)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "shards").iterdir()} == {
        oct((tmp_path / "tiny" / "config.json").stat().st_mode & 0o777)
    }
    assert len(load_model(resolve(str(tmp_path / "shards")), None, CPU).warnings) == 1


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_there_already_is_replaced_only_by_force_and_only_if_it_is_a_scale_model(grow: Grow) -> None:
    folder = grow().cwd / "out"
    (folder / "more").write_text("x")
    refused = grow()
    assert (refused.code, (folder / "more").exists()) == (2, True)
    assert refused.err.splitlines()[-1] == (
        "specbench: out already exists: choose another --output, or add --overwrite"
    )
    assert grow("--overwrite").code == 0
    assert {path.name for path in folder.iterdir()} == FILES
    other = grow("--overwrite", out="tiny")
    assert other.code == 2
    assert "tiny is not a scale model: --overwrite replaces nothing else" in other.err
    assert load_model(resolve(str(folder.parent / "tiny")), None, CPU)


def test_nothing_is_left_of_a_folder_that_could_not_be_finished_and_a_full_disk_is_noticed_before(
    grow: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr(write_scale_model, "save_file", fail)
    found = grow()
    assert (found.code, "No space left on device" in found.err) == (2, True)
    assert {path.name for path in found.cwd.iterdir()} == {"tiny"}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: type("Usage", (), {"free": 10**6})())
    found = grow(out="deep/down/out")
    assert (found.code, "has 0.0 GB left" in found.err) == (2, True)
    assert not (found.cwd / "deep").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("--like", "llama-8b"), 4, "unknown shape 'llama-8b' (did you mean llama3-8b or llama-7b?): choose one of"),
        (("--from", "demo"), 4, "demo@mini: its num_hidden_layers is 16, more than the 3 of mini"),
        (("--from", "nope"), 4, "unknown model 'nope'"),
        (("--dtype", "int8"), 2, "unknown --dtype 'int8': use float32, bfloat16"),
        (("--max-shard-size", "much"), 2, "--max-shard-size 'much': write a size such as 5GB or 500MB"),
    ],
)
def test_wrong_arguments_end_in_one_line(grow: Grow, arguments: tuple[str, ...], code: int, complaint: str) -> None:
    found = grow(*arguments)
    assert found.code == code
    assert complaint in found.err.splitlines()[-1]
    assert {path.name for path in found.cwd.iterdir()} == {"tiny"}
