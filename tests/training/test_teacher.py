"""What a target says along known text: kept states give the logits that are computed anew, whatever is on disk."""

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from specbench.errors import UsageError
from specbench.training import teacher
from specbench.training.cache import Example
from specbench.training.distil import Kept, Run
from specbench.training.evaluation import Judge
from specbench.training.learner import batch_of
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher, last_states, with_states
from tests.support.learning import VOCABULARY, cache, examples, llama, train

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def numbered(count: int, first: int = 0, seed: int = 0) -> list[Example]:
    found = examples(count, seed=seed)
    for number, one in enumerate(found):
        object.__setattr__(one, "number", first + number)
    return found


TEXTS = numbered(12)
COUNTS = np.array([len(one.ids) - one.start for one in TEXTS])


def keeping(network: Any, folder: Path, texts: Sequence[Example] = TEXTS) -> Teacher:
    return with_states(network, folder, np.array([len(one.ids) - one.start for one in texts]), "key", 10**6)


class Counted:
    """How many tokens go through a network's layers; the one that is fed for the head's sake does not count."""

    def __init__(self, network: Any) -> None:
        self.tokens = 0
        network.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, network: Any, args: Any, kwargs: Any) -> None:
        self.tokens += kwargs["input_ids"].numel() if kwargs["input_ids"].numel() > 1 else 0


@pytest.mark.parametrize(
    "network",
    [
        llama(2),
        Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=2.0)),
        Cohere2ForCausalLM(Cohere2Config(**SIZES, logit_scale=0.25)),
        GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
        OPTForCausalLM(
            OPTConfig(vocab_size=VOCABULARY, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
                      word_embed_proj_dim=16, max_position_embeddings=64)
        ),
    ],
    ids=lambda network: type(network).__name__,
)  # fmt: skip
def test_kept_states_give_the_same_logits(network: Any, tmp_path: Path) -> None:
    network = network.double().eval()
    kept, batch = keeping(network, tmp_path), batch_of(TEXTS[:5], 64)
    for _ in range(2):  # computed, then read
        torch.testing.assert_close(kept.logits(batch), Teacher(network).logits(batch), rtol=0, atol=1e-12)


def test_the_layers_read_every_text_once(tmp_path: Path) -> None:
    network = llama(2)
    kept, seen = keeping(network, tmp_path), Counted(network)
    student, text = llama(1, seed=1), cache(TEXTS[:8], TEXTS[8:])
    train(student, kept, text, Recipe(tokens=600, rows=4, evaluations=4, patience=9, temperature=1.0))
    assert seen.tokens == sum(len(one.ids) - 1 for one in TEXTS)
    train(llama(1, seed=2), keeping(network, tmp_path), text, Recipe(tokens=200, rows=3, losses=("tv",)))
    assert seen.tokens == sum(len(one.ids) - 1 for one in TEXTS)


def test_a_part_of_a_long_text_has_the_states_of_the_whole(tmp_path: Path) -> None:
    """A network that reads the part alone knows less of it."""
    network = llama(2).double()
    long = Example(np.random.default_rng(0).integers(1, VOCABULARY, 40).tolist(), 5, "a", "x", 0)
    kept = keeping(network, tmp_path, [long])
    whole = Teacher(network).logits(batch_of([long], 64))
    for seed in range(5):
        part = batch_of([long], 12, (seed,))
        (end,) = part.ends
        assert list(part.ids[0]) == long.ids[end - 12 : end]
        expected = whole[end - 5 - part.tokens : end - 5]
        torch.testing.assert_close(kept.logits(part), expected, rtol=0, atol=1e-12)


def test_what_a_draft_wrote_itself_is_computed_anew(tmp_path: Path) -> None:
    network = llama(2)
    kept, seen = keeping(network, tmp_path), Counted(network)
    train(llama(1, seed=1), kept, cache(TEXTS[:8], TEXTS[8:]), Recipe(tokens=60, rows=4, samples="student"))
    anew = seen.tokens
    train(llama(1, seed=1), kept, cache(TEXTS[:8], TEXTS[8:]), Recipe(tokens=60, rows=4, samples="student"))
    held_out = sum(len(one.ids) - 1 for one in TEXTS[8:])
    assert seen.tokens - anew == anew - held_out > 0


@pytest.mark.parametrize("damage", ["emptied", "cut", "changed", "gone"])
def test_damaged_states_are_computed_again(damage: str, tmp_path: Path) -> None:
    network, batch = llama(2), batch_of(TEXTS, 64)
    expected = keeping(network, tmp_path).logits(batch)
    file = tmp_path / "key.bin"
    held = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        damaged = {
            "emptied": bytes(len(held)), "cut": held[: len(held) // 2],
            "changed": held[:600] + bytes([held[600] ^ 1]) + held[601:],
        }  # fmt: skip
        file.write_bytes(damaged[damage])
    assert torch.equal(keeping(network, tmp_path).logits(batch), expected)
    assert file.read_bytes() == held


def test_a_run_that_was_killed_ends_alike_whatever_states_are_there(tmp_path: Path) -> None:
    recipe = Recipe(tokens=400, rows=4, rate=5e-3, evaluations=4, patience=9)
    text, network = cache(TEXTS[:8], TEXTS[8:]), llama(2)
    whole, killed, again = (llama(1, seed=1) for _ in range(3))
    train(whole, keeping(network, tmp_path / "whole"), text, recipe)

    def kill(progress: Any, _: Recipe) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    kept = Kept(tmp_path / "checkpoints", lambda student, done: None, every=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(killed, keeping(network, tmp_path / "killed"), text, recipe, kept, kill)
    (tmp_path / "killed" / "key.bin").unlink()
    train(again, keeping(network, tmp_path / "killed"), text, recipe, kept)
    assert all(torch.equal(*both) for both in zip(whole.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_states_are_kept_in_their_own_type(dtype: torch.dtype, tmp_path: Path) -> None:
    network = llama(2).to(dtype)
    kept = keeping(network, tmp_path)
    assert kept.states is not None
    held = [kept.states.of(TEXTS[0], partial(last_states, network, TEXTS[0])) for _ in range(2)]
    assert torch.equal(*held)
    assert held[1].dtype == dtype
    assert kept.states.bytes == (COUNTS * 16 * dtype.itemsize + teacher.DIGEST).sum()


def test_a_judge_says_the_same_of_a_draft(tmp_path: Path) -> None:
    network, student, recipe = llama(2).double(), llama(1, seed=1).double(), Recipe(temperature=1.0)
    kept, anew = (
        Judge(one, cache([], TEXTS, temperature=1.0), recipe).figures(student)[0]
        for one in (keeping(network, tmp_path), Teacher(network))
    )
    assert kept.alpha == pytest.approx(anew.alpha, abs=1e-6)
    assert kept.accepted == pytest.approx(anew.accepted, abs=1e-6)


def test_a_disk_with_too_little_room_is_refused_before_anything_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.statvfs(tmp_path)
    full = os.statvfs_result([*found[:4], 0, *found[5:10]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(UsageError, match=r"take 6\.2e-06 GB, and .* has 0 GB left: free.*--no-keep-states"):
        keeping(llama(2), tmp_path)
    few = with_states(llama(2), tmp_path, COUNTS, "few", expected=0)
    assert few.states is not None, "the disk may well have room for what is learned of a large text"


def test_a_disk_that_fills_up_is_one_line_and_leaves_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = llama(2)
    kept = keeping(network, tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    text = cache(TEXTS[:8], TEXTS[8:])
    run = Run(llama(1, seed=1), kept, text, Recipe(tokens=400, rows=4))
    run.evaluate()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UsageError, match=r"cannot write the target's states.*No space left.*command continues"):
        run.step()


def test_a_network_without_a_head_of_its_own_computes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = llama(2)
    monkeypatch.setattr(network, "get_output_embeddings", lambda: None)
    assert keeping(network, tmp_path) == Teacher(network)


def test_prompts_are_learned_too_where_that_is_asked_for(tmp_path: Path) -> None:
    network = llama(2).double()
    whole = np.array([len(one.ids) - 1 for one in TEXTS])
    kept = with_states(network, tmp_path, whole, "key", 10**6)
    batch = batch_of(TEXTS[:5], 64, prompts=True)
    assert batch.tokens == whole[:5].sum()
    torch.testing.assert_close(kept.logits(batch), Teacher(network).logits(batch), rtol=0, atol=1e-12)
    answers = batch_of(TEXTS[:5], 64)
    torch.testing.assert_close(kept.logits(answers), Teacher(network).logits(answers), rtol=0, atol=1e-12)
    recipe = Recipe(tokens=200, rows=4, prompts=True, samples="mixed", temperature=1.0)
    done = train(llama(1, seed=1), kept, cache(TEXTS[:8], TEXTS[8:]), recipe)
    assert done.figures.tokens == sum(COUNTS[8:]), "what is judged are the answers"
