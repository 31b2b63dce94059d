"""What a round asks of a GPU, seen without one: nothing of the host, and no more kernels than are known.

Every kernel of a captured round runs in every replay, and takes time however little it computes: a pass over the 32
layers of a 7B model is some 1300 kernels, of which seven a layer are products with weights.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding import loop
from specbench.models.network.sampling import Sampling
from tests.support.meta import steady_round, target
from tests.support.tiers import NAMES

SAMPLED, EVERY_WARPER = Sampling(1.0), Sampling(0.7, top_k=9, top_p=0.95, min_p=0.05, eta=0.01)
K = 4

# Kernels of one row in the tiers eager and graph, attention as one, by transformers 5.23. Whoever needs fewer writes
# the new number here; whoever needs more has made every round on every GPU slower, and should know for what.
KERNELS = {
    "layer of a pass": 40,
    "layer of a pass, grouped queries": 43,
    "pass besides its layers": 41,
    "pass over a tree besides its layers": 55,
    "law, with every warper": 34,
    "token of a draft besides its layer": 38,
    "draft besides its tokens": 11,
    "accept, baseline": 19,
    "accept, chain": 66,
    "accept, block": 102,
    "accept, token-match": 53,
    "accept, tree-top, one layer each": 230,
    "accept, every token more of a chain": 0,
    "accept, every layer in which a branch is kept": 4,
    "told to the host": 8,
}


def counted() -> dict[str, int]:
    """The same as they are found."""
    one, two = (steady_round("chain", K, SAMPLED, whole=target(layers)) for layers in (1, 2))
    grouped = [steady_round("chain", K, SAMPLED, whole=target(layers, kv_heads=8)) for layers in (1, 2)]
    tree, deeper = (steady_round("tree-top", K, SAMPLED, whole=target(layers)) for layers in (1, 2))
    accept = {name: steady_round(name, K, SAMPLED)["accept"] for name in ("baseline", "block", "token-match")}
    shorter, warped = steady_round("chain", K - 1, SAMPLED), steady_round("baseline", 0, EVERY_WARPER)
    layer, token = two["verify"] - one["verify"], two["draft"] - shorter["draft"]
    return {
        "layer of a pass": layer,
        "layer of a pass, grouped queries": grouped[1]["verify"] - grouped[0]["verify"],
        "pass besides its layers": one["verify"] - layer,
        "pass over a tree besides its layers": tree["verify"] - layer,
        "law, with every warper": warped["verify"] - two["verify"],
        "token of a draft besides its layer": token - layer,
        "draft besides its tokens": two["draft"] - K * token,
        **{f"accept, {name}": kernels for name, kernels in accept.items()},
        "accept, chain": two["accept"],
        "accept, every token more of a chain": two["accept"] - shorter["accept"],
        "accept, tree-top, one layer each": tree["accept"],
        "accept, every layer in which a branch is kept": deeper["accept"] - tree["accept"],
        "told to the host": two["told"],
    }


def test_a_round_takes_as_many_kernels_as_are_known() -> None:
    found = counted()
    changed = {
        name: f"{KERNELS.get(name)} is now {kernels}" for name, kernels in found.items() if kernels != KERNELS.get(name)
    }
    assert not changed, f"fewer: write them into KERNELS; more: find what brought them. {changed}"


@pytest.mark.parametrize("name", NAMES)
def test_a_steady_round_asks_nothing_of_the_host(name: str) -> None:
    """No value is read, and no tensor of the host is used or sent, whatever the method."""
    steady_round(name, 2, EVERY_WARPER, rows=2)


@pytest.mark.slow
@pytest.mark.parametrize("law", [Sampling(0.0), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_nor_does_one_of_a_single_row(name: str, law: Sampling) -> None:
    steady_round(name, K, law)


READS: dict[str, Callable[[Tensor], Any]] = {
    "one value": lambda tensor: tensor.sum().item(),
    "a condition": lambda tensor: bool(tensor.any()),
    "all values": lambda tensor: tensor.tolist(),
    "which are not zero": lambda tensor: tensor.nonzero(),
    "some of them": lambda tensor: tensor[tensor > 0],
    "which there are": lambda tensor: tensor.unique(),
}
SENDS: dict[str, Callable[[Tensor], Any]] = {
    "a list as an index": lambda tensor: tensor[[0, 1]],
    "a tensor of the host": lambda tensor: tensor + torch.zeros(2, dtype=torch.long),
    "values from the host": lambda tensor: torch.tensor([0, 1], device=tensor.device),
}


@pytest.mark.mutant(test=test_a_steady_round_asks_nothing_of_the_host)
@pytest.mark.parametrize("broken", [pytest.param(do, id=name) for name, do in {**READS, **SENDS}.items()])
def test_an_accept_that_asks_the_host_is_caught(
    broken: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, rounds = loop.cut, list[int]()

    def asking(*arguments: Any) -> Any:
        emitted, ended = cut(*arguments)
        rounds.append(0)
        if len(rounds) == 2:  # the first one may
            broken(emitted)
        return emitted, ended

    monkeypatch.setattr(loop, "cut", asking)
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        steady_round("prompt-lookup", 2, SAMPLED, rows=2)
    assert len(rounds) == 2
