"""Descriptions of checkpoints that no network can have are refused before a library looks at them."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from specbench.files import ASSETS
from specbench.models.checkpoints import check
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.checkpoints.weights import find
from tests.support.checkpoints import refusal_of, save_tiny

SHIPPED = json.loads((ASSETS / "pair" / "target" / "config.json").read_text())
GOOD = [
    {}, {"eos_token_id": None}, {"eos_token_id": [0, 1]}, {"head_dim": None}, {"dtype": None}, {"dtype": "float"},
    {"intermediate_size": [640] * 16}, {"num_local_experts": 0}, {"torch_dtype": "torch.float8_e4m3fn"},
    {"quantization_config": {"dtype": "int8", "num_layers": 0}},
    {"text_config": {"vocab_size": 9000}, "eos_token_id": 8999}, {"max_position_embeddings": 2**20},
]  # fmt: skip


def written(folder: Path, changes: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps({**SHIPPED, **changes}))
    return folder


@pytest.mark.parametrize("changes", GOOD, ids=str)
def test_numbers_that_networks_have(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert check.obstacle(written(tmp_path, changes)) is None


def test_weights_that_are_too_few_for_their_description(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(200_000))  # 4096 × 256 and 16 layers have a million and a half
    assert check.obstacle(written(tmp_path, {})) is None
    for changes in (
        {"vocab_size": 8_000_000},
        {"hidden_size": 2**18},
        {"hidden_size": None, "n_embd": 2**18},
        {"intermediate_size": [640, 10**12]},
        {"head_dim": 10**9},
        {"num_key_value_heads": 2**31, "head_dim": 64},
        {"text_config": {**SHIPPED, "vocab_size": 2**23}},
    ):
        line = refusal_of(load_config, Checkpoint("x", str(written(tmp_path, changes))))
        assert "weights or more, and the files of weights have 200,000 bytes" in line


def test_the_end_of_a_sequence_is_a_token_in_the_generation_config_too(tmp_path: Path) -> None:
    for ids in (0, [0, 4095], None):
        (tmp_path / check.GENERATION).write_text(json.dumps({"eos_token_id": ids}))
        assert check.obstacle(written(tmp_path, {})) is None
    for ids in (0.5, 10**9, [0, "1"]):
        (tmp_path / check.GENERATION).write_text(json.dumps({"eos_token_id": ids}))
        assert "generation_config.json: eos_token_id is" in str(check.obstacle(written(tmp_path, {})))


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "config.json: it is a pipe" in refusal_of(load_config, Checkpoint("x", str(tmp_path)))
    (tmp_path / "config.json").unlink()
    written(tmp_path, {})
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    assert "tokenizer.json: it is a pipe or a device" in str(check.obstacle(tmp_path))


@pytest.mark.parametrize(
    ("name", "load", "content", "said"),
    [
        ("config.json", load_config, "[" * 100_000, "config.json: not JSON"),
        ("config.json", load_config, '{"vocab_size": ' + "9" * 5000 + "}", "config.json: not JSON"),
        ("tokenizer.json", load_tokenizer, "[" * 100_000, "unusable"),
        ("model.safetensors.index.json", find, "[" * 200_000, "index.json is damaged"),
    ],
    ids=["levels", "digits", "levels of a tokenizer", "levels of an index"],
)
def test_what_no_reader_of_json_takes(tmp_path: Path, name: str, load: Any, content: str, said: str) -> None:
    (save_tiny(tmp_path) / "model.safetensors").unlink()
    (tmp_path / name).write_text(content)
    assert said in refusal_of(load, Checkpoint("x", str(tmp_path)))


def test_a_description_of_many_megabytes(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 30)
    assert "config.json: it is larger than 16 MiB" in refusal_of(load_config, Checkpoint("x", str(tmp_path)))


def test_parts_that_are_still_to_come_are_not_counted_as_missing(tmp_path: Path) -> None:
    """After an interrupted download a small part of many may be all that has arrived."""
    shape = SHIPPED | {"vocab_size": 1 << 20}
    (tmp_path / "model-00002-of-00030.safetensors").write_bytes(b"small")
    assert check.too_few_weights(tmp_path, shape) is None
    (tmp_path / "model-00002-of-00030.safetensors").rename(tmp_path / "model.safetensors")
    assert "the files of weights have 5 bytes" in str(check.too_few_weights(tmp_path, shape))


TEN = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
TABLE = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 54 + b"\0y").decode()}


@pytest.mark.parametrize(
    ("steps", "fine"),
    [
        ([TEN] * 9, False),
        ([TEN] * 10**5, False),
        ([TEN] * 2, True),
        ([TABLE, SPACES], True),
        ([TABLE, TEN], False),
        ([{"type": "Prepend", "prepend": "▁"}, SPACES], True),
        ([{"type": "Prepend", "prepend": "e" * 10**6}], False),
    ],
    ids=["nine", "many", "two", "known", "both", "one before", "many before"],
)
@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_makes_texts_too_long(tmp_path: Path, part: str, steps: list[Any], fine: bool) -> None:
    file = tmp_path / "tokenizer.json"
    sequence = {"type": "Sequence", f"{part}s": steps}
    file.write_text(json.dumps({part: sequence}).replace("Replace", "R\\u0065place"))
    if fine:
        assert check.tokenizer_obstacle(tmp_path) is None
    else:
        line = refusal_of(load_tokenizer, Checkpoint("x", str(tmp_path)))
        assert line == f"x: unusable {file}: it makes a text more than 512 times as long"
