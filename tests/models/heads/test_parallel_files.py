"""Heads that draft in one pass from files of every format: the same rows, and one line for what is none of a target."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.errors import UnusableModelError, UsageError
from specbench.models.heads.build import built
from specbench.models.heads.dflash import Pard
from specbench.models.heads.together import Together
from specbench.models.network.sampling import Sampling
from tests.support.head_passes import head_of, module_of
from tests.support.heads import write_head
from tests.support.parallel_heads import K, Plain, V
from tests.support.tiny import context_of, network, worst

TEXTS = ([2, 0, 4], [0, 1, 2, 2, 3])
KNOWN = 5  # tokens of a head with a vocabulary of its own
FLASH = {"aux": (0, 1), "block": K + 1}


@pytest.fixture(scope="module")
def target() -> Any:
    return network("llama", V)


def rows_of(head: Any, target: Any, depth: int = K) -> Tensor:
    """[B, depth, V] the rows that greedy drafts were drawn from, before temperature."""
    context = context_of(TEXTS, 8, K)
    model = Together(head, Plain(target, head.taps, context), Sampling(), V, depth)
    model.start(context)
    _, rows = model.sample(context, depth, Greedy())
    return rows


class Greedy:
    """Takes the most probable token."""

    def categorical(self, probs: Tensor, stream: Any) -> Tensor:
        return probs.argmax(-1)

    def bernoulli(self, probs: Tensor, stream: Any) -> Tensor:
        raise NotImplementedError


# --- the same head in the words of several engines --------------------------------------------------------------------


def prefixed(prefix: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    return change


def whole_model(tensors: dict[str, Tensor]) -> None:
    """Medusa-2: the base beside the heads."""
    prefixed("medusa_head.")(tensors)
    tensors["model.embed_tokens.weight"] = torch.zeros(V, 16)


def of_vllm(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        head, layer, *rest = name.split(".")
        ours = f"lm_heads.{head}.weight" if rest == ["weight"] else f"blocks.{head}.layers.{layer}.{rest[-1]}"
        tensors[ours] = tensors.pop(name)


@pytest.mark.parametrize(
    "change", [whole_model, of_vllm, prefixed("medusa_heads.")], ids=["Medusa-2", "vLLM", "prefix"]
)
def test_a_medusa_head_is_the_same_in_all_words(change: Any, target: Any, tmp_path: Path) -> None:
    write_head(tmp_path / "plain", "medusa", target.config)
    write_head(tmp_path / "other", "medusa", target.config, change=change, file="model.safetensors")
    plain, other = (rows_of(module_of(tmp_path / name, target), target) for name in ("plain", "other"))
    assert worst(plain, other) == 0


def test_a_pickle_of_medusa_heads_is_read_and_their_number_is_that_of_the_file(target: Any, tmp_path: Path) -> None:
    write_head(tmp_path, "medusa", target.config, heads=5, file="medusa_lm_head.pt")
    assert module_of(tmp_path, target).steps == 5  # config.json says 2, as published ones do


def test_vllms_shared_output_is_that_of_every_head(target: Any, tmp_path: Path) -> None:
    """`original_lm_head`: written once, or as that of the first head."""

    def first(tensors: dict[str, Tensor]) -> None:
        tensors["lm_heads.0.weight"] = tensors.pop("lm_head.weight")

    write_head(tmp_path / "once", "medusa", target.config, form="vllm")
    write_head(tmp_path / "first", "medusa", target.config, form="vllm", change=first)
    once, also = (rows_of(module_of(tmp_path / name, target), target) for name in ("once", "first"))
    assert worst(once, also) == 0


def test_vllms_truncated_vocabulary_is_one_of_the_targets_tokens(target: Any, tmp_path: Path) -> None:
    kept = torch.tensor([6, 0, 2, 5])

    def cut(tensors: dict[str, Tensor]) -> None:
        tensors["token_map"] = kept

    write_head(tmp_path / "cut", "medusa", target.config, form="vllm", change=cut)
    write_head(tmp_path / "whole", "medusa", target.config, form="vllm")
    cut_rows, rows = (rows_of(module_of(tmp_path / name, target), target) for name in ("cut", "whole"))
    alone = torch.zeros_like(rows).index_copy(-1, kept, rows[..., kept])
    assert worst(cut_rows, alone / alone.sum(-1, keepdim=True)) <= 1e-12


# --- reduced vocabularies ---------------------------------------------------------------------------------------------


def reduced(tensors: dict[str, Tensor]) -> None:
    """An output of its own for some tokens, as speculators writes it; a correction of the same tokens."""
    width, ids = len(tensors["norm.weight"]), torch.arange(KNOWN) * V // KNOWN
    tensors["lm_head.weight"] = torch.randn(KNOWN, width, generator=torch.Generator().manual_seed(1))
    tensors["d2t"] = ids - torch.arange(KNOWN)
    tensors["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, ids, value=True)
    if "markov_head.markov_w2.weight" in tensors:
        tensors["markov_head.markov_w2.weight"] = tensors["markov_head.markov_w2.weight"][:KNOWN].clone()


def widened(tensors: dict[str, Tensor]) -> None:
    """The same output among all tokens, with scores for the others that no law leaves anything for."""
    reduced(tensors)
    ids = tensors.pop("d2t") + torch.arange(KNOWN)
    del tensors["t2d"]
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        if name in tensors:
            small = tensors[name]
            tensors[name] = small.new_zeros(V, small.shape[1]).index_copy(0, ids, small)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_head_that_knows_some_tokens_has_their_rows(kind: str, target: Any, tmp_path: Path) -> None:
    for name, change in (("some", reduced), ("all", widened)):
        write_head(tmp_path / name, kind, target.config, names="speculators", change=change, **FLASH)
    some, rows = (rows_of(module_of(tmp_path / name, target), target) for name in ("some", "all"))
    ids = module_of(tmp_path / "some", target).known
    assert ids.tolist() == [n * V // KNOWN for n in range(KNOWN)]
    assert some.index_fill(-1, ids, 0).abs().max() == 0
    first = torch.zeros_like(rows[:, 0]).index_copy(-1, ids, rows[:, 0, ids])  # greedy drafts part after the first
    assert worst(some[:, 0], first / first.sum(-1, keepdim=True)) <= 1e-12


def test_p_eagle_knows_some_tokens_too(target: Any, tmp_path: Path) -> None:
    write_head(tmp_path, "peagle", target.config, names="speculators", aux=(1, 2), vocab=KNOWN)
    found = rows_of(module_of(tmp_path, target), target)
    assert sorted(set(found.sum((0, 1)).nonzero()[:, 0].tolist())) == [n * V // KNOWN for n in range(KNOWN)]


# --- switches ---------------------------------------------------------------------------------------------------------


def test_dflash_drafts_from_its_first_row_where_it_says_so(target: Any, tmp_path: Path) -> None:
    write_head(tmp_path / "next", "dflash", target.config, sample_from_anchor=True, **FLASH)
    write_head(tmp_path / "own", "dflash", target.config, **FLASH)
    later, own = (module_of(tmp_path / name, target) for name in ("next", "own"))
    assert (later.steps, own.steps) == (K + 1, K)
    assert worst(rows_of(later, target, K + 1)[:, 1:], rows_of(own, target)) <= 1e-12  # a row later of the same block


def test_the_layers_that_are_read_can_be_named(target: Any, tmp_path: Path) -> None:
    head = head_of(write_head(tmp_path, "dflash", target.config, **FLASH))
    assert (built(head, target).taps, built(head, target, (0, 2)).taps) == ((1, 2), (0, 2))
    medusa = head_of(write_head(tmp_path / "medusa", "medusa", target.config))
    with pytest.raises(UsageError, match="--aux-layers: head is a Medusa head"):
        built(medusa, target, (1, 2))


def test_a_confidence_head_is_read(target: Any, tmp_path: Path) -> None:
    write_head(tmp_path, "dspark", target.config, confidence=True, **FLASH)
    found = module_of(tmp_path, target)
    assert found.warnings == ()
    assert found.confidence_head is not None


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_network_without_a_mask_is_no_pard(target: Any) -> None:
    with pytest.raises(UnusableModelError, match=r"the draft: its config.json names no mask among its 7 tokens"):
        Pard(target, V)


def test_a_head_of_another_kind_is_told_apart(target: Any, tmp_path: Path) -> None:
    head = head_of(write_head(tmp_path, "eagle3", target.config, aux=(0, 1, 2)))
    assert not built(head, target).at_once
