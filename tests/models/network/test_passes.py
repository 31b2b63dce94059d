"""Masks against their definitions, slot by slot, and passes of networks that lie on other devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import LlamaForCausalLM

from specbench.decoding.decode import begin
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Verdict
from specbench.models.network.caches import RowStaticLayer, Slots
from specbench.models.network.causal import Causal
from specbench.models.network.passes import additive, causal_mask, tree_mask
from specbench.models.network.sampling import Sampling
from tests.support.checkpoints import llama

TREES = [
    (ROOT,),
    (ROOT, 0, 1),
    (ROOT, ROOT, ROOT),
    (ROOT, ROOT, 0, 0, 1, 1, 2),
    (ROOT, 0, ROOT, 1, 2, 2, ROOT, 4, 6),
    (ROOT, 0, 0, 1, 2, 4, 5, 3),
]
windows = pytest.mark.parametrize("window", [None, 1, 2, 3, 50])


def line(parents: tuple[int, ...], node: int) -> list[int]:
    """A node and its ancestors, the node first."""
    return [] if node == ROOT else [node, *line(parents, parents[node])]


def defined(fed: list[int], parents: tuple[int, ...], length: int, window: int | None) -> list[list[bool]]:
    """What each fed token and each node may see: what is not behind it, and not further back than the window."""
    root = fed[-1]
    width = window or length + len(parents)
    rows = [[slot <= at and at - slot < width for slot in range(length)] for at in fed]
    for node in range(len(parents)):
        path = line(parents, node)
        at = root + len(path)
        position = {root + 1 + n: root + len(line(parents, n)) for n in path}
        position |= {slot: slot for slot in range(root + 1)}
        rows.append([slot in position and at - position[slot] < width for slot in range(length)])
    return rows


@windows
@pytest.mark.parametrize("parents", TREES, ids=str)
@pytest.mark.parametrize("tokens", [1, 2], ids=["", "refeed"])
def test_a_node_sees_what_was_committed_its_ancestors_and_itself(
    parents: tuple[int, ...], tokens: int, window: int | None
) -> None:
    length, roots = 18, [0, 1, 4, 7]
    fed = torch.tensor([[max(root - 1, 0), root][-tokens:] for root in roots])
    tree = TokenTree(torch.zeros((len(roots), len(parents)), dtype=torch.long), parents)
    mask = tree_mask(fed, tree, length, window)
    assert mask.shape == (len(roots), 1, tokens + len(parents), length)
    assert mask[:, 0].tolist() == [defined(row, parents, length, window) for row in fed.tolist()]


@windows
def test_a_chain_masked_as_a_tree_is_masked_causally(window: int | None) -> None:
    fed = torch.tensor([[0], [3], [5]])
    tree = TokenTree.chain(torch.zeros((3, 4), dtype=torch.long))
    slots = torch.cat([fed, fed + 1 + torch.arange(4)], 1)
    assert torch.equal(tree_mask(fed, tree, 12, window), causal_mask(slots, 12, window))


@windows
def test_a_token_sees_itself_and_the_window_before_it(window: int | None) -> None:
    positions = torch.tensor([[2, 3, 4], [0, 1, 2]])
    mask = causal_mask(positions, 7, window)
    assert mask.shape == (2, 1, 3, 7)
    for row, token in ((r, t) for r in range(2) for t in range(3)):
        at = int(positions[row, token])
        assert mask[row, 0, token].nonzero()[:, 0].tolist() == list(range(max(0, at - (window or 7) + 1), at + 1))


def test_no_query_is_left_without_a_slot_and_none_sees_behind_the_tree() -> None:
    fed = torch.tensor([[0], [5]])
    for parents in TREES:
        tree = TokenTree(torch.zeros((2, len(parents)), dtype=torch.long), parents)
        mask = tree_mask(fed, tree, 20, 1)
        assert mask.any(-1).all()
        behind = torch.arange(20) > fed + len(parents)
        assert not (mask[:, 0] & behind.unsqueeze(1)).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_additive_mask_hides_the_same_slots(dtype: torch.dtype) -> None:
    mask = causal_mask(torch.tensor([[1, 2]]), 4)
    scores: Tensor = torch.randn((1, 1, 2, 4), generator=torch.Generator().manual_seed(0)).to(dtype)
    hidden = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    assert torch.equal((scores + additive(mask, dtype)).softmax(-1), hidden)


HERE, THERE = torch.device("cpu"), torch.device("meta")


Named = Mapping[str, Any]


class Landing(TorchFunctionMode):
    """Whatever is brought from the device without numbers to one that has some is zeros there."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Named | None = None
    ) -> Any:
        if function is Tensor.to and args[0].is_meta and args[1:] == (HERE,):
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        return function(*args, **(kwargs or {}))


def test_only_tokens_and_rows_leave_the_device_of_a_draft() -> None:
    with THERE:
        network = LlamaForCausalLM(llama()).eval()
    given = list[Tensor]()

    def look(module: Any, args: Any, named: Named) -> None:
        given.extend(one for one in named.values() if isinstance(one, Tensor))

    network.register_forward_pre_hook(look, with_kwargs=True)
    model, context = Causal(network, Sampling(temperature=1.0), 64), begin([[3, 1, 4, 1], [5, 9]], 8, 4, [], HERE)
    with Landing():
        model.start(context)
        ids, rows = model.sample(context, 3, seeded([0, 1], HERE))
        tree = TokenTree(ids, (-1, 0, 0))
        assert {ids.device, rows.device, model.probs(context, tree).device} == {HERE}
        path = torch.zeros((2, 2), dtype=torch.long)
        model.settle(context.pos, tree, Verdict(path, context.pos, context.pos, path))
    assert len(given) == 5 * 3  # tokens, positions and mask of each pass
    assert {one.device for one in given} == {THERE}
    assert model.cache is not None
    assert {layer.device for layer in model.cache.rows} == {THERE}


@pytest.mark.parametrize("rows", [1, 2])
def test_a_layer_is_written_to_where_it_lies(rows: int) -> None:
    slots = Slots()
    slots.place(torch.zeros((rows, 3), dtype=torch.long), 8)
    for number, device in enumerate((HERE, THERE)):
        states = torch.zeros((rows, 1, 3, 4), device=device)
        keys, values = RowStaticLayer(8, slots, number).update(states, states)
        assert (keys.device, values.device) == (device, device)
    there = slots.on(THERE)
    assert (there.index.device, there.rows.device, there.reach) == (THERE, THERE, 8)
    assert slots.on(THERE) is there  # copied once per pass
    slots.place(torch.ones((rows, 3), dtype=torch.long), 8)
    assert slots.on(THERE) is not there
    assert slots.on(HERE) is slots
