"""Loading checkpoints: what is whole loads; everything else ends in one line that says why."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.divided import network_sizes
from specbench.models.checkpoints.loading import Loaded, load_model, needed_extra, without_extra
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.checkpoints.weights import find
from specbench.models.network.attention import NAME
from tests.support.checkpoints import CPU, WEIGHTS, WORDS, llama, refusal_of, save_tiny

Change = Callable[[Path], object]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama checkpoint with random weights and a tokenizer of three words; not to be changed."""
    return save_tiny(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "tiny"))


def local(folder: Path) -> Checkpoint:
    return Checkpoint("tiny", str(folder))


def load(folder: Path, dtype: torch.dtype | None = None) -> Loaded:
    return load_model(local(folder), dtype, CPU)


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# What loads


def test_a_checkpoint_loads_ready_to_use(pristine: Path) -> None:
    loaded = load(pristine)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == NAME
    assert loaded.dtype == loaded.model.dtype == torch.float32
    assert loaded.commit is None
    assert loaded.warnings == ()


def test_the_dtype_is_the_one_asked_for(pristine: Path) -> None:
    assert {p.dtype for p in load(pristine, torch.float64).model.parameters()} == {torch.float64}


def test_tied_weights_are_not_missing(tmp_path: Path) -> None:
    model = LlamaForCausalLM(llama(tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / WEIGHTS)
    assert torch.equal(load(tmp_path).model.lm_head.weight, model.lm_head.weight)


def test_shards_load_and_a_missing_one_is_named(pristine: Path, tmp_path: Path) -> None:
    LlamaForCausalLM.from_pretrained(pristine).save_pretrained(tmp_path, max_shard_size="8KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert load(tmp_path).warnings == ()
    shards[1].unlink()
    assert f"{shards[1].name} is missing" in refusal_of(load, tmp_path)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Ends a test that waits."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


PIPES = ("config.json", WEIGHTS, "pytorch_model.bin", "model.safetensors.index.json", "adapter_config.json",
         "generation_config.json", "tokenizer.json", "vocab.model", "merges.txt", "chat_template.jinja")  # fmt: skip


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_in_a_checkpoint_is_refused_whoever_looks_first(folder: Path, name: str, impatient: None) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    for step in (find, load_config, load_tokenizer):
        assert f"cannot read {folder / name}: it is a pipe or a device" in refusal_of(step, local(folder))
    assert without_extra(local(folder)) is None


def test_so_is_a_shard_that_is_a_pipe(folder: Path, impatient: None) -> None:
    (folder / "inner").mkdir()
    os.mkfifo(folder / "inner" / "shard.safetensors")
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {"lm_head.weight": "inner/shard.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    assert "shard.safetensors is damaged: it is a pipe or a device" in refusal_of(load, folder)


def test_files_that_are_no_part_of_a_checkpoint_may_be_anything(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "notes.txt").symlink_to("nothing")
    assert load(folder).warnings == ()


def test_nothing_is_printed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pickle_weights(folder)  # everything transformers has to say about loading
    load(folder)
    load_tokenizer(local(folder))
    assert capfd.readouterr() == ("", "")


def test_a_folder_loads_without_a_network(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("asked for a network")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket.socket, "connect", fail)
    load(pristine)
    load_tokenizer(local(pristine))


def test_the_tokenizer_loads(pristine: Path) -> None:
    assert load_tokenizer(local(pristine)).get_vocab() == WORDS


# Damaged and incomplete checkpoints


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return apply


def rebyte(change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


@pytest.mark.parametrize(
    ("damage", "complaints"),
    [
        (rebyte(lambda whole: whole[:1000]), [WEIGHTS, "is damaged", "copy it again"]),
        (rebyte(lambda whole: whole[:-1]), [WEIGHTS, "is damaged"]),
        (rebyte(lambda whole: whole + b"\0"), [WEIGHTS, "is damaged"]),
        (lambda f: (f / WEIGHTS).rename(f / "model-x.safetensors"), ["no weights in"]),
        (rewrite(lambda t: t.pop("lm_head.weight")), ["weights are missing: lm_head.weight"]),
        (rewrite(lambda t: t.pop("model.norm.weight")), ["weights are missing: model.norm.weight"]),
        (lambda f: configure(f, num_hidden_layers=3), ["weights are missing: model.layers.2.", " and 6 more"]),
    ],
)
def test_damaged_weights_are_refused(folder: Path, damage: Change, complaints: list[str]) -> None:
    damage(folder)
    message = refusal_of(load, folder)
    assert message.startswith("tiny: ")
    assert [c for c in complaints if c not in message] == [], message


def test_weights_that_are_linked_from_elsewhere_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "mine")
    (folder / WEIGHTS).symlink_to(folder.parent / "mine")
    assert "is a link to a file outside of its folder: copy" in refusal_of(load, folder)
    (folder / "here").hardlink_to(folder.parent / "mine")
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("here")
    assert load(folder).warnings == ()


def test_weights_that_the_cache_of_the_hub_links_to_are_read(folder: Path, tmp_path: Path) -> None:
    """`snapshots/COMMIT/model.safetensors` is a link to `blobs/HASH` in huggingface_hub's cache."""
    (tmp_path / "models--a--b" / "snapshots").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (tmp_path / "models--a--b" / "blobs").symlink_to(tmp_path / "disk")
    (folder / WEIGHTS).rename(tmp_path / "disk" / "hash")
    (folder / WEIGHTS).symlink_to("../../blobs/hash")
    snapshot = folder.rename(tmp_path / "models--a--b" / "snapshots" / "commit")
    (tmp_path / "short").symlink_to(snapshot)
    for place in (snapshot, tmp_path / "short"):
        assert load(place).warnings == ()


@pytest.mark.parametrize(("kind", "said"), [(torch.int8, "I8"), (torch.bool, "BOOL"), (torch.complex64, "C64")])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_weights_of_a_type_that_the_configuration_does_not_name(
    folder: Path, kind: torch.dtype, said: str, prefix: str
) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith("model.")]:
            weights[prefix + name.removeprefix("model.")] = weights.pop(name)
        weights[f"{prefix}norm.weight"] = weights[f"{prefix}norm.weight"].to(kind)

    rewrite(change)(folder)
    configure(folder, dtype="bfloat16")
    assert f"{prefix}norm.weight is stored as {said}, and config.json names no way" in refusal_of(load, folder)
    pickle_weights(folder)
    assert f"{prefix}norm.weight is stored as {kind}, and config.json names" in refusal_of(load, folder)


def test_weights_of_several_floating_types_load(folder: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.float16)
        weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.float8_e4m3fn)
        weights["model.layers.0.self_attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)  # a mask of old releases
        weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].bfloat16()

    rewrite(change)(folder)
    (warning,) = load(folder).warnings
    assert warning.endswith("weights that the model does not use: model.layers.0.self_attn.bias")


def test_a_configuration_that_contradicts_itself_is_refused(folder: Path) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3, "factor": 2.0}
    configure(folder, rope_parameters={**rope, "rope_theta": 1e4, "original_max_position_embeddings": 32})
    line = refusal_of(network_sizes, load_config(local(folder)), torch.float32, CPU)
    assert line.startswith(f"unusable {folder}/config.json: it describes no network: ")


def test_a_configuration_of_many_levels_needs_nothing(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 100_000)
    assert needed_extra(local(folder), folder) == ("", "")
    assert "not JSON" in refusal_of(load_config, local(folder))


def test_weights_that_nobody_uses_are_a_warning(folder: Path) -> None:
    configure(folder, num_hidden_layers=1)
    (warning,) = load(folder).warnings
    assert warning.startswith("tiny: weights that the model does not use: model.layers.1.")
    assert warning.endswith(" and 6 more")


def test_lack_of_memory_is_not_blamed_on_the_checkpoint(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", fail)
    with pytest.raises(torch.OutOfMemoryError):
        load(pristine)


# Pickled weights


class Payload:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("pickled-code-ran",)


def pickle_weights(folder: Path, **more: object) -> None:
    torch.save({**load_file(folder / WEIGHTS), **more}, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def test_pickled_weights_load_with_a_warning(pristine: Path, folder: Path) -> None:
    pickle_weights(folder)
    loaded = load(folder)
    assert loaded.warnings == ("tiny: pickled weights (.bin), read by torch's weights-only loader",)
    assert torch.equal(loaded.model.lm_head.weight, load(pristine).model.lm_head.weight)


def test_safetensors_come_before_pickled_weights(pristine: Path, folder: Path) -> None:
    pickle_weights(folder, payload=Payload())
    shutil.copy(pristine / WEIGHTS, folder)
    assert load(folder).warnings == ()


def test_code_in_pickled_weights_does_not_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle_weights(folder, payload=Payload())
    assert "pytorch_model.bin: damaged, or a pickle with code, which is never run" in refusal_of(load, folder)
    assert not (tmp_path / "pickled-code-ran").exists()
