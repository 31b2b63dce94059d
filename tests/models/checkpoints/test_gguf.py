"""GGUF files: found by name, dequantised on load, and the same model as the folder that is made from one.

GGUF files of Llama checkpoints: read again, they have the same weights and the same token ids.
"""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from specbench.errors import UnusableModelError
from specbench.files import ASSETS
from specbench.models.checkpoints import gguf, names
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.gguf import gguf_of
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, resolve
from specbench.models.network.recurrent import rollback_of
from tests.support.checkpoints import CPU, refusal_of, save_tiny
from tests.support.ggufs import TOKENS, save_gguf, tiny_llama
from tests.support.tinypair import Pair

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="the extra gguf is not installed")
MODELS = os.environ.get("SPECBENCH_SMOLLM2", "")
needs_smollm2 = pytest.mark.skipif(not MODELS, reason="SPECBENCH_SMOLLM2 names no folder with SmolLM2")


def greedy(model: Any, prompt: list[int], new: int) -> list[int]:
    found = model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False, pad_token_id=0)
    return list(map(int, found[0, len(prompt) :]))


@needs_gguf
def test_a_file_is_the_model_it_was_written_from(tmp_path: Path) -> None:
    model, file = tiny_llama(), save_gguf(tiny_llama(), tmp_path / "tiny.gguf", "F32")
    checkpoint = resolve(str(file))
    loaded = load_model(checkpoint, torch.float32, CPU)
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in loaded.model.state_dict().items())
    assert greedy(loaded.model, [3, 1, 4], 16) == greedy(model, [3, 1, 4], 16)
    assert (loaded.weights, loaded.warnings, loaded.commit) == ("GGUF F32, dequantised", (), None)
    assert load_config(checkpoint).dtype == torch.float32
    assert load_tokenizer(checkpoint).convert_ids_to_tokens([0, 62, 63]) == [TOKENS[0], "!!", "<eos>"]


@needs_gguf
def test_a_file_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gguf import gguf_reader

    read: list[str] = []

    class Reader(gguf_reader.GGUFReader):
        def __init__(self, file: Path) -> None:
            read.append(Path(file).name)
            super().__init__(file)

    monkeypatch.setattr(gguf_reader, "GGUFReader", Reader)
    monkeypatch.setattr(gguf, "LARGE", 0)
    monkeypatch.setattr(gguf, "_READERS", {})
    file = save_gguf(tiny_llama(), tmp_path / "tiny.gguf", "F32")
    for step in (load_config, load_tokenizer, load_config, lambda one: load_model(one, torch.float32, CPU)):
        step(resolve(str(file)))
    assert read == ["tiny.gguf"]
    assert capsys.readouterr().err == f"reading {file}\n"
    assert gguf._READERS == {}, "the memory is free again"
    os.utime(file, (1, 1))
    load_config(resolve(str(file)))
    os.utime(file, (2, 2))
    load_tokenizer(resolve(str(file)))
    assert len(read) == 3


@needs_gguf
def test_packed_weights_are_those_that_the_package_unpacks_and_the_folder_made_of_them_decodes_alike(
    tmp_path: Path,
) -> None:
    import gguf

    file = save_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    loaded = load_model(resolve(str(file)), None, CPU)
    packed = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}["blk.1.ffn_up.weight"]
    unpacked = torch.from_numpy(gguf.quants.dequantize(packed.data, packed.tensor_type).copy())
    assert torch.equal(loaded.model.model.layers[1].mlp.up_proj.weight, unpacked)
    assert (loaded.weights, loaded.dtype) == ("GGUF Q8_0, dequantised", torch.float32)
    loaded.model.save_pretrained(tmp_path / "folder")
    folder = load_model(resolve(str(tmp_path / "folder")), torch.float32, CPU)
    assert greedy(folder.model, [5, 9], 24) == greedy(loaded.model, [5, 9], 24)
    assert rollback_of(loaded.model, False, len(TOKENS), "tiny") == "position"


@needs_gguf
def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = save_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    whole = file.read_bytes()
    for content in (b"garbage!" * 9, b"", whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert "unusable" in refusal_of(load_model, resolve(str(file)), None, CPU)


def test_what_reads_the_file_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny.gguf"
    file.touch()
    monkeypatch.setattr(names, "find_spec", lambda _: None)
    assert refusal_of(load_config, resolve(str(file))) == (
        f"{file}: a GGUF file needs gguf: pip install 'specbench-decoding[gguf]'"
    )


def test_a_part_that_was_cut_from_a_file_says_what_to_do(tmp_path: Path) -> None:
    part = tmp_path / "tiny.gguf.part00"
    part.touch()
    line = f"{part} is one part of a GGUF file: join all parts, as by cat {tmp_path}/tiny.gguf.part* > tiny.gguf"
    assert refusal_of(resolve, str(part)) == line
    assert "unknown model" in refusal_of(resolve, str(tmp_path / "tiny.gguf.part01"))


def test_files_are_found_by_name(tmp_path: Path) -> None:
    file = tmp_path / "tiny-Q4_K_M.gguf"
    assert f"there is no file {file}" in refusal_of(resolve, str(file))
    file.touch()
    assert resolve(str(file)) == Checkpoint(str(file), str(tmp_path), file=file.name)
    assert resolve(str(file)).place == str(file)
    remote = resolve("owner/tiny-GGUF/tiny-Q4_K_M.gguf", "abc")
    assert (remote.source, remote.file, remote.revision) == ("owner/tiny-GGUF", "tiny-Q4_K_M.gguf", "abc")


@needs_gguf
def test_a_part_of_a_file_and_a_folder_of_files_say_what_to_do(tmp_path: Path) -> None:
    part = tmp_path / "tiny-00001-of-00002.gguf"
    part.touch()
    assert "join the parts with llama-gguf-split --merge" in refusal_of(load_config, resolve(str(part)))
    folder = refusal_of(load_config, resolve(str(tmp_path)))
    assert re.search(r"it holds GGUF files: name one of them, such as .*00001", folder)


def test_a_folder_beside_files_is_still_a_folder(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "tiny.gguf").touch()
    assert load_model(resolve(str(tmp_path)), None, CPU).weights == "safetensors"


@needs_gguf
@needs_smollm2
@pytest.mark.slow
def test_a_real_file_is_the_folder_that_was_made_from_it() -> None:
    (file,) = Path(MODELS).glob("SmolLM2*.gguf")
    ours = load_model(resolve(str(file)), torch.bfloat16, CPU)
    folder = Path(MODELS) / "smollm2-135m"
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert gguf.commonest(file) == "Q4_1"
    for (name, one), (other, two) in zip(ours.model.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(one, two), name
    prompt = load_tokenizer(resolve(str(file)))("The capital of France is").input_ids
    assert prompt == load_tokenizer(resolve(str(folder)))("The capital of France is").input_ids
    assert greedy(ours.model, prompt, 8) == greedy(theirs, prompt, 8)


pytest.importorskip("gguf")

SHIPPED = ASSETS / "pair"


def made(pair: Pair, folder: Path, dtype: torch.dtype = torch.float32, **changes: object) -> Path:
    config = AutoConfig.from_pretrained(pair.target)
    for name, value in changes.items():
        setattr(config, name, value)
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    return gguf_of("tiny", [pair.target / "model.safetensors"], config, tokenizer, dtype, folder)


def test_what_is_read_again_is_the_same_network(pair: Pair, tmp_path: Path) -> None:
    file = made(pair, tmp_path)
    unpacked = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    found = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, **unpacked).eval()
    wanted = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    ids = torch.tensor([[1, 5, 9, 2]])
    torch.testing.assert_close(found(ids).logits, wanted(ids).logits, atol=1e-5, rtol=1e-5)


def test_it_is_made_once_for_each_dtype(pair: Pair, tmp_path: Path) -> None:
    first = made(pair, tmp_path)
    before = first.stat().st_mtime_ns
    assert made(pair, tmp_path) == first
    assert first.stat().st_mtime_ns == before
    assert made(pair, tmp_path, torch.bfloat16).stat().st_size < first.stat().st_size
    assert len(list(tmp_path.iterdir())) == 2


def test_text_is_split_as_by_the_tokenizer_that_it_was_made_of(tmp_path: Path) -> None:
    folder = SHIPPED / "target"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    file = gguf_of("demo", [folder / "model.safetensors"], config, tokenizer, torch.bfloat16, tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    text = "def add(a, b):\n    return a + b\n"
    assert found(text).input_ids == tokenizer(text).input_ids


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "mamba"}, "its architecture is mamba"),
        ({"attention_bias": True}, "its layers have biases"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "its rope is llama3"),
    ],
)
def test_what_it_does_not_write_is_refused(pair: Pair, tmp_path: Path, changes: dict[str, object], why: str) -> None:
    with pytest.raises(UnusableModelError, match=f"{why}.*convert it with llama"):
        made(pair, tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []
