"""The search for layers to keep: planted sets are found, every move is the best of its kind, and it ends in time."""

import random
from itertools import combinations
from typing import Any

import pytest
import torch
import transformers as hf

from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.measure.search import (
    Kept,
    Scored,
    alpha_of_layers,
    layer_shares,
    name,
    removals,
    search,
    swaps,
    timed_costs,
    written_by,
)
from specbench.models.network.attention import NAME
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import chosen
from specbench.theory import formulas, optimum
from tests.support.tiny import CPU, network

DEPTH, V = 6, 24
IDLE = (1, 2, 4)  # layers of the planted network that do nothing


def scored(kept: Kept, alpha: float, depth: int = DEPTH) -> Scored:
    return Scored(kept, alpha, len(kept) / depth)


def losing(weights: dict[int, float]) -> Any:
    """α falls by a factor for every layer that is left out."""

    def score(kept: Kept) -> Scored:
        alpha = 1.0
        for layer, factor in weights.items():
            alpha *= 1.0 if layer in kept else factor
        return scored(kept, alpha, len(weights))

    return score


def test_layers_that_do_nothing_go_first() -> None:
    score = losing({layer: 1.0 if layer in IDLE else 0.3 for layer in range(DEPTH)})
    found = search(DEPTH, score, 1000)
    assert {step.done for step in found.steps[1:4]} == {f"without {layer}" for layer in IDLE}
    assert found.best.kept == (0, 3, 5)
    assert (found.best.alpha, found.best.c) == (1, 0.5)
    assert [len(step.set.kept) for step in found.steps[:6]] == [6, 5, 4, 3, 2, 1]
    assert not found.cut


@pytest.mark.parametrize("seed", range(5))
def test_where_layers_do_not_depend_on_each_other_the_best_set_of_all_is_found(seed: int) -> None:
    draw = random.Random(seed)
    score = losing({layer: draw.uniform(0.5, 1) for layer in range(DEPTH)})
    every = [score(kept) for n in range(1, DEPTH) for kept in combinations(range(DEPTH), n)]
    best = search(DEPTH, score, 1000).best
    assert best.speedup == max(one.speedup for one in every)


def test_a_swap_mends_what_the_removals_could_not_know() -> None:
    """Two layers that only work together look idle one by one."""

    def score(kept: Kept) -> Scored:
        good = {(0, 1): 0.95, (0, 1, 2): 0.6, (0, 2, 3): 0.7, (2, 3): 0.6, (0, 3): 0.9, (0, 1, 2, 3): 1.0}
        return scored(kept, good.get(kept, 0.2), 4)

    found = search(4, score, 1000)
    assert [step.done for step in found.steps][-1] == "1 for 3"
    assert found.best.kept == (0, 1)


@pytest.mark.parametrize("most", [7, 11, 16, 20, 30])
def test_no_more_sets_are_scored_than_were_asked_for(most: int) -> None:
    asked: list[Kept] = []

    def score(kept: Kept) -> Scored:
        asked.append(kept)
        return scored(kept, 0.9 ** (DEPTH - len(kept)))

    found = search(DEPTH, score, most)
    assert len(asked) == len(set(asked)) == found.evaluations <= most
    assert found.cut == (most < 25)  # what there is to see when nothing improves
    assert len(found.best.kept) < DEPTH


def test_all_layers_promise_nothing_and_lose_nothing() -> None:
    assert scored(tuple(range(DEPTH)), 1.0).speedup == pytest.approx(1)


def test_the_lookahead_is_the_best_up_to_eight() -> None:
    for alpha, c in ((0.9, 0.1), (0.5, 0.3), (0.1, 0.9), (1.0, 0.5)):
        one = Scored((0,), alpha, c)
        best, speedup = optimum.best_k(alpha, c, 8)
        assert one.speedup == (speedup if best else formulas.speedup(alpha, 1, c))
        assert one.k == max(best, 1)


def test_moves() -> None:
    assert removals((0, 2)) == {(2,): "without 0", (0,): "without 2"}
    assert removals((3,)) == {}
    assert swaps((0, 2), 4) == {(1, 2): "1 for 0", (2, 3): "3 for 0", (0, 1): "1 for 2", (0, 3): "3 for 2"}


@pytest.mark.parametrize("n", range(1, 6))
def test_names_say_what_is_kept(n: int) -> None:
    for kept in combinations(range(5), n):
        assert tuple(chosen(name(kept), 5)) == kept
    assert name((0, 1, 2, 5, 7, 8)) == "target[0:3,5,7:9]"


# --- networks ---------------------------------------------------------------------------------------------------------


def planted(idle: tuple[int, ...] = IDLE) -> Any:
    """Six layers, some of which add nothing to what passes through them."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": V}
    config = hf.LlamaConfig(num_hidden_layers=DEPTH, max_position_embeddings=64, **shape)
    net: Any = hf.AutoModelForCausalLM.from_config(config, attn_implementation=NAME).double().eval()
    for parameter in net.parameters():
        parameter.data = parameter.data * 25 if parameter.ndim > 1 else parameter.data
    for layer in idle:
        net.model.layers[layer].self_attn.o_proj.weight.data.zero_()
        net.model.layers[layer].mlp.down_proj.weight.data.zero_()
    return net.requires_grad_(False)


@pytest.mark.parametrize("law", [Sampling(0), Sampling(1.0)], ids=["greedy", "sampled"])
def test_the_layers_of_a_network_that_do_nothing_are_found(law: Sampling) -> None:
    net = planted()
    texts = [written_by(net, [1 + n, 2, 3], [(5 * n + i) % V for i in range(12)], law, V) for n in range(3)]
    c = layer_shares(DEPTH)
    found = search(DEPTH, lambda kept: Scored(kept, alpha_of_layers(net, kept, texts, law), c(len(kept))), 200)
    assert found.best.kept == (0, 3, 5)
    assert found.best.alpha == pytest.approx(1)
    assert found.best.speedup == pytest.approx(formulas.speedup(1, 8, 0.5))


@pytest.mark.parametrize("law", [Sampling(0), Sampling(0.7, top_p=0.9)], ids=["greedy", "sampled"])
def test_acceptance_is_the_overlap_of_the_laws_of_every_new_token(law: Sampling) -> None:
    net, prompt, new = network("llama", V), [1, 2, 3], [4, 5, 6, 7]
    with torch.no_grad():
        from specbench.models.network.skipping import with_layers

        ids = torch.tensor([[*prompt, *new]])
        p, q = (law(one(input_ids=ids).logits, V)[0, 2:6] for one in (net, with_layers(net, [1])))
    text = written_by(net, prompt, new, law, V)
    assert text.p.shape == (4, V)
    assert alpha_of_layers(net, [1], [text], law) == pytest.approx(float(torch.minimum(p, q).sum(1).mean()), abs=1e-12)
    assert alpha_of_layers(net, [0, 1], [text], law) == pytest.approx(1)


def test_what_a_set_costs_lies_on_the_line_between_one_layer_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "specbench.measure.search.Causal.sample",
        lambda self, *a, **b: now.__setitem__(0, now[0] + 0.5 + 0.25 * self.config.num_hidden_layers),
    )
    c = timed_costs(planted(), [1, 2, 3], Sampling(0), V, seeded([0], CPU), WallClock(now=lambda: now[0]))
    assert [c(n) for n in (1, 2, 6)] == pytest.approx([0.375, 0.5, 1])
    assert [layer_shares(8)(n) for n in (2, 8)] == [0.25, 1]
