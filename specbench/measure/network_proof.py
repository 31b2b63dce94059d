"""A proof through a network and its cache: every outcome that `decode` can have with a tiny pair, against its target.

Knows networks, caches and methods; must not know the user's pair. The networks are random, in float64, with three
tokens; the target's own distribution comes from plain forward passes over whole sequences, without a cache.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from specbench.decoding.build import build
from specbench.decoding.decode import decode
from specbench.decoding.loop import Speculate
from specbench.decoding.proofs.enumeration import replay_outcomes
from specbench.decoding.proofs.exact import CPU
from specbench.decoding.randomness import Source
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law

# Chains that are rolled back, and a tree of one level: larger ones, whose nodes are gathered, have too many outcomes.
METHODS = ("chain", "block", "tree-distinct")
VOCAB, K, NEW, EOS = 3, 1, 3, (2,)
PROMPT = (0, 1)
Sequences = dict[tuple[int, ...], float]  # the probability of every one


@cache
def network(seed: int) -> Any:
    """A random network whose distributions are far from uniform. Its norms compute in float64, unlike RMS norms of
    transformers, which would hide errors below 1e-7."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64, rope_parameters=rope, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    made = GPTNeoXForCausalLM(config).double().requires_grad_(False).train(False)
    rng = torch.Generator().manual_seed(seed)
    for weight in made.parameters():
        noise = 0.4 * torch.randn(weight.shape, generator=rng, dtype=torch.float64)
        weight.data = noise if weight.ndim > 1 else weight.data + noise
    return made


def network_error(name: str) -> float:
    """The worst error of the probability of any sequence that the method can emit after the prompt."""
    models = {"target": Causal(network(0), Law(), VOCAB), "draft": Causal(network(1), Law(), VOCAB)}
    return difference(emitted(build(name, models, K)), expected(network(0)))


def emitted(method: Speculate) -> Sequences:
    """The distribution of what `decode` emits, run anew for every combination of outcomes of its draws."""

    def run(source: Source) -> tuple[int, ...]:
        (trace,) = decode(method, [PROMPT], new=NEW, eos=EOS, rng=source, device=CPU)
        return trace.tokens

    found: Sequences = {}
    for tokens, weight in replay_outcomes(run):
        found[tokens] = found.get(tokens, 0.0) + weight
    return found


def expected(target: Any, tokens: Sequence[int] = (), weight: float = 1.0) -> Sequences:
    """The distribution of the target itself, one plain forward pass per prefix."""
    if len(tokens) == NEW or (tokens and tokens[-1] in EOS):
        return {tuple(tokens): weight}
    ids = torch.tensor([[*PROMPT, *tokens]])
    row = target(input_ids=ids, use_cache=False).logits[0, -1].softmax(-1).tolist()
    return {
        sequence: chance
        for token, share in enumerate(row)
        for sequence, chance in expected(target, [*tokens, token], weight * share).items()
    }


def difference(found: Sequences, right: Sequences) -> float:
    """The worst difference of any probability."""
    return max(abs(found.get(tokens, 0.0) - right.get(tokens, 0.0)) for tokens in {*found, *right})
