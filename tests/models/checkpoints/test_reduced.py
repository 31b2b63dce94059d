"""Checkpoints whose head knows some tokens: what fits loads and runs; everything else ends in one line.

A draft's vocabulary is the target's most frequent tokens, special ones always among them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from specbench.errors import UsageError
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.divided import network_sizes
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, resolve
from specbench.models.checkpoints.reduced import coverage, most_frequent, special_tokens
from specbench.models.network.sampling import ReducedHead, reduce_head
from tests.support.checkpoints import CPU, WEIGHTS, llama, refusal_of
from tests.support.families import CONFIGS
from tests.support.frontdoor import Command
from tests.support.tinypair import Pair, change_weights

KNOWN = torch.tensor([0, 3, 4, 9, 60])
Weights = dict[str, torch.Tensor]


def d2t(*ids: int) -> torch.Tensor:
    return torch.tensor(ids) - torch.arange(len(ids))


def reduce_on_disk(folder: Path, known: torch.Tensor = KNOWN) -> Path:
    """A checkpoint as other tools write it: its head cut, offsets beside it, and no mask."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "draft_vocab_size": len(known)}))

    def cut(weights: Weights) -> None:
        weights["lm_head.weight"] = weights["lm_head.weight"][known].clone()
        weights["d2t"] = d2t(*known.tolist())

    change_weights(folder, cut)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(llama()).save_pretrained(tmp_path / "draft")
    return reduce_on_disk(tmp_path / "draft")


def load(folder: Path) -> Any:
    return load_model(Checkpoint("small", str(folder)), None, CPU)


@torch.no_grad()
def test_the_rows_of_the_head_are_those_of_its_tokens(folder: Path) -> None:
    torch.manual_seed(0)
    whole, text = LlamaForCausalLM(llama()).eval(), torch.tensor([[1, 5, 63]])
    found = load(folder).model
    assert isinstance(found.get_output_embeddings(), ReducedHead)
    logits = found(text).logits
    assert torch.allclose(logits[..., KNOWN], whole(text).logits[..., KNOWN], atol=1e-5)
    assert int(logits.isfinite().sum()) == 3 * len(KNOWN)
    assert load(folder).warnings == ()
    assert not any(weight.requires_grad for weight in found.parameters())


DAMAGES: dict[str, tuple[Callable[[Weights], object], str]] = {
    "beyond": (lambda w: w.update(d2t=d2t(0, 3, 4, 9, 64)), "d2t has the tokens 0 to 64, and the vocabulary has 64"),
    "below": (lambda w: w.update(d2t=d2t(-1, 3, 4, 9, 63)), "d2t has the tokens -1 to 63"),
    "not rising": (lambda w: w.update(d2t=d2t(0, 4, 3, 9, 63)), "the tokens of d2t do not rise"),
    "twice": (lambda w: w.update(d2t=d2t(0, 4, 4, 9, 63)), "the tokens of d2t do not rise"),
    "too short": (lambda w: w.update(d2t=d2t(0, 4)), "d2t is [2] of int64, and draft_vocab_size is 5"),
    "no numbers": (lambda w: w.update(d2t=d2t(0, 3, 4, 9, 63).float()), "d2t is [5] of float32"),
    "no d2t": (lambda w: w.pop("d2t"), "draft_vocab_size is 5, and its weights have no d2t"),
    "no head": (lambda w: w.pop("lm_head.weight"), "draft_vocab_size is 5, and its weights have no lm_head.weight"),
    "whole head": (lambda w: w.update({"lm_head.weight": torch.zeros(64, 16)}), "lm_head.weight is [64, 16]"),
    "another mask": (lambda w: w.update(t2d=torch.ones(64, dtype=torch.bool)), "d2t and t2d name other tokens"),
    "a short mask": (lambda w: w.update(t2d=torch.ones(9, dtype=torch.bool)), "d2t and t2d name other tokens"),
    "another width": (
        lambda w: w.update({"lm_head.weight": torch.zeros(5, 8)}),
        "its reduced head is [5, 8], and the network is 16 wide",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_tensors_that_do_not_fit_are_refused_in_one_line(
    folder: Path, damage: Callable[[Weights], object], said: str
) -> None:
    change_weights(folder, damage)
    line = refusal_of(load, folder)
    assert line.startswith("small: ")
    assert said in line


def test_pickled_weights_are_refused_and_growing_too(folder: Path) -> None:
    assert "its head knows 5 of 64 tokens" in refusal_of(load_config, resolve(f"{folder}@llama-68m"))
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    assert "is read from plain safetensors" in refusal_of(load, folder)


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox", "falcon"])
def test_its_size_is_known_before_it_is_read(name: str) -> None:
    config, shape = CONFIGS[name]
    sizes = config(vocab_size=64, **shape)
    net = reduce_head(AutoModelForCausalLM.from_config(sizes), KNOWN.tolist())
    weights = {id(tensor): tensor.nbytes for tensor in (*net.parameters(), *net.buffers())}
    found = network_sizes(net.config, torch.float32, CPU)
    assert found.weights == sum(weights.values())
    assert found.inner < 64 or name != "llama"
    assert found.vocabulary == 64


def test_a_run_with_such_a_draft_is_lossless_and_says_what_it_was(run: Command, pair: Pair, tmp_path: Path) -> None:
    draft = reduce_on_disk(Path(shutil.copytree(pair.draft, tmp_path / "small")), torch.arange(0, 61, 3))
    found = run("--draft", draft)
    (row,) = found.table()
    assert (row["status"], row["lossless"]) == ("ok", "identical")
    assert row["draft_weights"] == "safetensors, 21 of 64 tokens"
    assert 0 < float(row["alpha"]) < 1


COUNTS = torch.tensor([5, 0, 9, 5, 0, 7])


@pytest.mark.parametrize(
    ("size", "always", "kept"),
    [
        (1, (), [2]),
        (3, (), [0, 2, 5]),  # of equals the lower id
        (3, (4,), [2, 4, 5]),
        (2, (1, 4), [1, 4]),
        (6, (1,), [0, 1, 2, 3, 4, 5]),
        (4, (2,), [0, 2, 3, 5]),
    ],
)
def test_the_most_frequent_tokens_are_kept_in_rising_order(size: int, always: tuple[int, ...], kept: list[int]) -> None:
    assert most_frequent(COUNTS, size, always) == kept


@pytest.mark.parametrize(
    ("size", "always", "said"),
    [
        (7, (), "it can have 1, .* to 6"),
        (1, (1, 2), "it can have 2, which are special tokens"),
        (0, (), "a vocabulary of 0 tokens"),
        (3, (6,), "the special token 6 is not one of the 6 tokens"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size: int, always: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        most_frequent(COUNTS, size, always)


def test_coverage_is_the_mean_probability_of_what_is_known() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    assert coverage(p, [0, 2]) == pytest.approx((0.75 + 0.5) / 2)
    assert coverage(p, [0, 1, 2]) == pytest.approx(1)


def test_special_tokens_are_those_of_the_tokenizer_and_the_ends() -> None:
    tokenizer = load_tokenizer(resolve("demo"))
    tokenizer.add_tokens(["<|turn|>"])
    turn = tokenizer.convert_tokens_to_ids("<|turn|>")
    assert special_tokens(tokenizer, 7, [8, 9], None) == {tokenizer.eos_token_id, turn, 7, 8, 9}
