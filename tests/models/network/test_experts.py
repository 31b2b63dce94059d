"""The experts that passes touch: counted as by hand, of verify passes alone, and without a trace in the network."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

from specbench.decoding.decode import decode
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import COLUMNS, Count, layers_with_experts, touched, v_of
from tests.support.tiny import CPU, network

V, K, NEW = 24, 3, 12
PROMPTS = ((1, 2, 3), (4, 5, 6, 7))


def counted(method: str, net: Any, k: int = K, prompts: tuple[tuple[int, ...], ...] = PROMPTS[:1]) -> Count:
    models = {"target": Causal(net, Sampling(0), V), "draft": Causal(network("mixtral", V, 1), Sampling(0), V)}
    count = Count(net, layers_with_experts(net), len(prompts))
    with count.counting():
        rng = seeded(range(len(prompts)), CPU)
        decode(build(method, models, k, count), prompts, new=NEW, eos=(), rng=rng, device=CPU, clock=count)
    return count


def mean(counts: Sequence[float]) -> float:
    return sum(counts) / len(counts)


def test_a_step_touches_what_its_token_chose_and_leaves_no_hook_behind() -> None:
    net = network("mixtral", V)
    found = counted("baseline", net)
    assert tuple(found.row()) == COLUMNS
    assert list(found.row().values()) == [4, 2, 2, 1, 1]
    assert {*found.once, *found.many, *found.independent} == {2}
    assert not any(layer._forward_pre_hooks for layer in layers_with_experts(net))


def test_a_verify_pass_touches_what_its_tokens_chose_and_rows_of_a_batch_share_it(monkeypatch: Any) -> None:
    net, seen = network("mixtral", V), []
    for layer in net.model.layers:
        plain = layer.mlp.gate.forward

        def watched(x: Any, plain: Any = plain) -> Any:
            found = plain(x)
            seen.append([set(token) for token in found[2].tolist()])
            return found

        monkeypatch.setattr(layer.mlp.gate, "forward", watched)
    found = counted("chain", net)
    passes = seen[2:]  # the prompt's pass comes first, and is none of a round
    assert found.many == [len(set().union(*tokens)) for tokens in passes]
    assert found.independent == [touched(4, 2, len(tokens)) for tokens in passes]
    assert mean(found.many) > mean(found.once) == 2
    row, of_bytes = found.row(), found.bytes()
    assert row["v_by_experts"] == v_of(*of_bytes, 2, mean(found.many))
    assert row["v_by_independence"] == v_of(*of_bytes, 2, mean(found.independent))
    found = counted("chain", network("mixtral", V), prompts=PROMPTS)
    assert 2 < mean(found.once) < mean(found.many) <= 4


def test_bytes_are_those_of_the_parameters_and_every_touched_expert_is_read_once() -> None:
    net = network("qwen3-moe", V)
    experts = [layer.mlp.experts for layer in net.model.layers]
    held = sum(8 * p.numel() for module in experts for p in module.parameters())
    every = sum(8 * p.numel() for p in net.parameters())
    dense, expert = counted("baseline", net).bytes()
    assert expert == held / 4
    assert dense == every - held - 8 * net.model.embed_tokens.weight.numel()  # of which a pass reads few rows
    assert [v_of(300, 100, 2, many) for many in (2, 5, 6)] == [1, 800 / 500, 900 / 500]


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(4, 2, 1), (4, 2, 3), (5, 1, 4), (3, 3, 2), (6, 2, 2)])
def test_independent_choices_touch_so_many_in_the_mean(experts: int, chosen: int, tokens: int) -> None:
    choices = list(product(combinations(range(experts), chosen), repeat=tokens))
    by_enumeration = sum(len(set().union(*choice)) for choice in choices) / len(choices)
    assert touched(experts, chosen, tokens) == pytest.approx(by_enumeration, rel=1e-12)


def test_a_dense_network_has_none() -> None:
    assert layers_with_experts(network("llama", V)) == []
