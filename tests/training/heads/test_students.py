"""Heads as they learn give the very rows that they give when they draft the same tokens, from the same hidden rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specbench.decoding.randomness import seeded
from specbench.models.heads.build import built, joined, through_masks
from specbench.models.heads.files import read_head
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.training.heads import Beside, Masked, Unrolled, chains
from specbench.training.new_heads import HeadOptions, beginning
from tests.support.heads import write_head
from tests.support.tiny import CPU, context_of, network

K = 4
LAW = Sampling(1.0)
VOCABULARY = 7
NET = network("llama", VOCABULARY, dtype=torch.float32)
TEXTS = [[1, 4, 2, 0, 3], [2, 2, 6], [5, 0]]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("eagle3", {"aux": (0, 1)}),
    ("eagle3", {"aux": (0, 1), "vocab": 5}),
    ("eagle3", {"aux": (0, 1), "layers": 2}),
    ("medusa", {"heads": K}),
]


MODULES = ["llama", "qwen2", "qwen3", "qwen3-moe", "gemma2", "gpt-oss", "granite"]  # by their targets


def head_of(folder: Path, kind: str, switches: dict[str, Any]) -> Any:
    found = read_head(write_head(folder / kind, kind, NET.config, **switches))
    assert found is not None
    return built(found, NET)


@pytest.mark.parametrize(("kind", "switches"), KINDS, ids=["EAGLE-3", "of some tokens", "of two layers", "Medusa"])
def test_rows_in_learning_are_those_of_a_decode_that_drafts_the_same_tokens(
    kind: str, switches: dict[str, Any], tmp_path: Path
) -> None:
    student = (Beside if kind == "medusa" else Unrolled)(head_of(tmp_path, kind, switches))
    compare(NET, head_of(tmp_path, kind, switches), student)


@pytest.mark.parametrize("feeds_normed", [True, False], ids=["fed normed states", "fed states before their norm"])
@pytest.mark.parametrize("name", MODULES)
def test_rows_of_an_mtp_module_in_learning_are_those_of_a_decode(name: str, feeds_normed: bool) -> None:
    net = network(name, VOCABULARY, dtype=torch.float32)
    student, other = (moved(beginning("mtp", net, HeadOptions(None, 3, "target"))[0]) for _ in range(2))
    for one in (student, other):
        one.head.feeds_normed = feeds_normed
    other.head.config._attn_implementation = net.config.get_text_config(decoder=True)._attn_implementation
    compare(net, other.head, student)


def moved(student: Any) -> Any:
    """Away from where it began, in which it says what its target says."""
    generator = torch.Generator().manual_seed(0)
    for weight in student.parameters():
        weight.data += 0.2 * torch.randn(weight.shape, generator=generator)
    return student


def compare(net: Any, head: Any, student: Any) -> None:
    """What a head drafts on a target, and what the same head says where it learns the drafted tokens."""
    target, draft = joined(Causal(net, LAW, VOCABULARY), head, K)
    context = context_of(TEXTS, K + 1, K)
    target.start(context)
    draft.start(context)
    ids, rows = draft.sample(context, K, seeded(range(len(TEXTS)), CPU))
    for text, drafted, q in zip(TEXTS, ids.tolist(), rows, strict=True):
        found = learned_rows(student, text + drafted, len(text), net)
        assert (found - q).abs().max() <= 1e-5


def test_rows_of_masks_in_learning_are_those_of_a_decode(tmp_path: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(write_head(tmp_path / "pard", "pard", NET.config, layers=2))
    draft = through_masks(Causal(network, LAW, VOCABULARY), "draft", K)
    context = context_of(TEXTS, K + 1, K)
    draft.start(context)
    ids, rows = draft.sample(context, K, seeded(range(len(TEXTS)), CPU))
    student = Masked(network, network.config.pard_token)
    for text, drafted, q in zip(TEXTS, ids.tolist(), rows, strict=True):
        found = learned_rows(student, text + drafted, len(text))
        assert (found - q).abs().max() <= 1e-5


@torch.no_grad()
def learned_rows(student: Any, whole: list[int], begun: int, net: Any = NET) -> Tensor:
    """[K, V] the rows of the drafts of the round that began when so many tokens of a text were committed."""
    tokens = torch.tensor([whole[:-1]]).unsqueeze(-1)
    features = tokens if isinstance(student, Masked) else hidden(student.head.taps, whole, net)[:, :-1]
    following = torch.tensor([whole[1:]])
    found = []
    for step in range(K):
        place = torch.zeros(following.shape, dtype=torch.bool)
        place[0, begun - 2 + step] = True  # where the token after the last committed one is learned, and those after it
        found.append(student(features, following, place, K)[step][0])
    return LAW(torch.stack(found), VOCABULARY)


def hidden(taps: Any, ids: list[int], net: Any = NET) -> Tensor:
    """[1, L, A·H] by transformers' own record of hidden states."""
    states = net(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    assert len(states) - 1 not in taps  # whose entry is normed
    return torch.cat([states[-1 if tap == "z" else tap] for tap in taps], -1)


def test_a_place_is_left_out_where_no_round_can_have_begun_so_long_before(tmp_path: Path) -> None:
    student = Unrolled(head_of(tmp_path, "eagle3", {"aux": (0, 1)}))
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    places = torch.tensor([[True, True, True], [False, True, False]])
    drafts = student(hidden((0, 1), [0, 1, 2]).expand(2, -1, -1), ids, places, 3)
    assert [len(rows) for rows in drafts] == [4, 3, 1]
    assert all(rows.isfinite().all() for rows in drafts)


def test_drafted_pairs_see_the_text_up_to_their_round_and_their_own_chain() -> None:
    seen = chains(4, 2, CPU)[0, 0].int().tolist()
    assert seen[3] == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]  # true 0 and 1; its first draft at 2; itself at 3
    assert seen[0] == [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]  # a round that never was: it sees itself alone
