"""What a set of layers is worth as a draft of its own network: acceptance along known output, and what a token costs.

Knows networks, tokens and clocks; must not know how sets are searched, or where prompts come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Clock
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law
from specbench.models.network.layers import with_layers

DRAWN, REPEAT, WARMUP = 8, 11, 2  # tokens of a timed draft, how often it is timed, and how often before that


@dataclass(frozen=True)
class Written:
    """What a network wrote: ids [1, L] of prompt and new tokens without the last of them, and its distributions p
    [n, V] of the n new tokens."""

    ids: Tensor
    p: Tensor


@torch.no_grad()
def written_by(network: Any, prompt: Sequence[int], new: Sequence[int], law: Law, width: int) -> Written:
    """A prompt and the tokens that the network wrote after it, at least one."""
    device = next(network.parameters()).device
    ids = torch.tensor([[*prompt, *new][:-1]], device=device)
    return Written(ids, rows(network, ids, len(new), law, width))


def rows(network: Any, ids: Tensor, last: int, law: Law, width: int) -> Tensor:
    """[last, V] distributions of the tokens after the last ones of a sequence, by one pass over it."""
    logits = network(input_ids=ids, use_cache=False, logits_to_keep=last).logits
    return law(logits[0, -last:], width)


@torch.no_grad()
def alpha_of_layers(network: Any, kept: Sequence[int], texts: Sequence[Written], law: Law) -> float:
    """α of the kept layers: the mean of Σ min(p, q) over all new tokens, along what the whole network wrote.

    Greedy distributions are points: then it is the share of tokens in which both agree.
    """
    draft = with_layers(network, kept)
    shared = [
        torch.minimum(text.p, rows(draft, text.ids, len(text.p), law, text.p.shape[1])).sum(1).double()
        for text in texts
    ]
    return float(torch.cat(shared).mean().clamp(0, 1))


def layer_shares(depth: int) -> Callable[[int], float]:
    """c by the number of kept layers, as if nothing but layers took time."""
    return lambda kept: kept / depth


def timed_costs(
    network: Any, prompt: Sequence[int], law: Law, width: int, source: Source, clock: Clock
) -> Callable[[int], float]:
    """c by the number of kept layers: the line through a drafted token of one layer and one of all layers.

    All layers are taken to cost alike. Both are timed alternately after the same prompt; medians count.
    """
    depth = network.config.get_text_config(decoder=True).num_hidden_layers
    device = next(network.parameters()).device
    context = begin([list(prompt)], DRAWN, DRAWN, [], device)
    models = [Causal(with_layers(network, range(layers)), law, width) for layers in (1, depth)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for model in models:
        model.start(context)
    for _ in range(WARMUP + REPEAT):
        for model, times in zip(models, seconds, strict=True):
            clock.start()
            model.sample(context, DRAWN, source, refeed=0)
            times.append(clock.stop()[0])
    one, every = (median(times[WARMUP:]) for times in seconds)
    first = min(one / every, 1.0)  # where noise drowns what a layer costs
    return lambda kept: first + (1 - first) * (kept - 1) / (depth - 1)
