"""The experts that passes touch: counted as by hand, of verify passes alone, and without a trace in the network."""

from typing import Any

from specbench.decoding.build import build
from specbench.decoding.decode import decode
from specbench.decoding.randomness import seeded
from specbench.models.network.causal import Causal
from specbench.models.network.experts import Count, layers_with_experts
from specbench.models.network.law import Law
from specbench.theory.experts import Experts, touched
from tests.support.tiny import CPU, network

V, K, NEW = 24, 3, 12
PROMPTS = ((1, 2, 3), (4, 5, 6, 7))


def counted(method: str, net: Any, k: int = K, prompts: tuple[tuple[int, ...], ...] = PROMPTS[:1]) -> Experts:
    models = {"target": Causal(net, Law(0), V), "draft": Causal(network("mixtral", V, 1), Law(0), V)}
    count = Count(net, layers_with_experts(net), len(prompts))
    with count.counting():
        rng = seeded(range(len(prompts)), CPU)
        decode(build(method, models, k, count), prompts, new=NEW, eos=(), rng=rng, device=CPU, clock=count)
    return count.found()


def test_a_step_touches_what_its_token_chose_and_leaves_no_hook_behind() -> None:
    net = network("mixtral", V)
    found = counted("baseline", net)
    assert (found.experts, found.once, found.many, found.independent) == (4, 2, 2, 2)
    assert not any(layer._forward_pre_hooks for layer in layers_with_experts(net))


def test_a_verify_pass_touches_what_its_tokens_chose(monkeypatch: Any) -> None:
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
    by_hand = [len(set().union(*tokens)) for tokens in passes]
    assert found.many == sum(by_hand) / len(by_hand) > found.once == 2
    assert found.independent == sum(touched(4, 2, len(tokens)) for tokens in passes) / len(passes)


def test_rows_of_a_batch_share_what_they_touch() -> None:
    found = counted("chain", network("mixtral", V), prompts=PROMPTS)
    assert 2 < found.once < found.many <= 4


def test_bytes_are_those_of_the_parameters() -> None:
    net = network("qwen3-moe", V)
    experts = [layer.mlp.experts for layer in net.model.layers]
    held = sum(8 * p.numel() for module in experts for p in module.parameters())
    every = sum(8 * p.numel() for p in net.parameters())
    found = counted("baseline", net)
    assert found.expert == held / 4
    assert found.dense == every - held - 8 * net.model.embed_tokens.weight.numel()  # of which a pass reads few rows


def test_a_dense_network_has_none() -> None:
    assert layers_with_experts(network("llama", V)) == []
