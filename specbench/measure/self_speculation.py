"""The control of all controls: a draft that is the target itself. Every draft is accepted, but for rounding.

Knows the networks of a pair and the loop; must not know the user's methods. What α lacks to 1 here is the difference
between feeding tokens one by one and several at once, and nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench import metrics
from specbench.backends.base import Networks
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.verifiers.rejection import Rejection
from specbench.measure.order import seed_of
from specbench.measure.rescoring import Text
from specbench.spec import BASELINE, RunSpec

FLOAT32 = 1e-6  # what float32 rows that are equal may lack to 1 when they are summed


@dataclass(frozen=True)
class Control:
    """How many drafts were tested and rejected, the mean chance α that one is accepted, and what was emitted."""

    tested: int
    rejected: int
    alpha: float
    texts: tuple[Text, ...]


def self_speculation(networks: Networks, spec: RunSpec, prompts: Sequence[Prompt]) -> Control:
    """Chains of K tokens drafted by the target for itself, at the temperature of the spec."""
    traces = [control_trace(networks, spec, prompt) for prompt in prompts]
    found = metrics.acceptance([counts for trace in traces for counts in trace.rounds])
    texts = tuple(Text(prompt.ids, trace.tokens) for prompt, trace in zip(prompts, traces, strict=True))
    return Control(found.tested, found.tested - found.accepted, found.alpha, texts)


def control_trace(networks: Networks, spec: RunSpec, prompt: Prompt) -> metrics.Trace:
    """The decode of one prompt."""
    target: Any = networks.models(spec.with_(method=BASELINE))["target"]
    method = Speculate(ModelDrafter(target.twin(), spec.k), target, Rejection())
    rng = networks.source(spec, [seed_of(spec, prompt.id, 0, "self-speculation")])
    to: Any = {"new": spec.max_new_tokens, "eos": networks.eos(spec), "device": networks.device}
    with networks.gradless():
        (trace,) = decode(method, [prompt.ids], rng=rng, **to)
    return trace


def most_missing(noise: float, temperature: float) -> float:
    """How much of α the noise ε of logits can take, doubled: logits that differ by at most 2ε have a total variation
    distance of at most tanh ε."""
    return math.tanh(noise / temperature) + FLOAT32
