"""Whole rounds as tests need them: made ready in any way, on models that trace, with draws that are looked up.

A batch holds one row for every combination of outcomes that a round can have, so that one call of a compiled round
gives its whole law.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from specbench.decoding.decode import begin, buffer_length
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import methods, needs
from specbench.decoding.methods import build
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import Stream, seeded
from specbench.decoding.rounds import Play, Whole
from specbench.decoding.timing import Clock
from specbench.decoding.types import Context
from specbench.metrics import Trace
from specbench.models.execution.compiled import Compiled, missing_compiler
from specbench.models.execution.region_code import Regional, Regions
from specbench.models.execution.regions import Region
from specbench.models.network.attention import NAME
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.sources import OutcomeSource
from tests.support.tiny import network
from tests.support.toys import CPU, Toy

Ready = Callable[[Play], Play]
NEEDS_COMPILER = pytest.mark.skipif(bool(missing_compiler()), reason=f"machine code: {missing_compiler()}")


def as_it_is(play: Play) -> Play:
    return play


def compiled(backend: str) -> Ready:
    return lambda play: Compiled(play, CPU, backend)


class AsRecorded:
    """In place of code on disk: regions run operator by operator, as they were recorded. `regions`: every one."""

    def __init__(self, *_: object) -> None:
        self.regions: list[Region] = []

    def code(self, region: Region) -> Any:
        self.regions.append(region)
        given = {f"w{number}": torch.nn.Parameter(one, False) for number, one in enumerate(region.weights)}
        module = GraphModule(given, region.graph)
        return SimpleNamespace(load=lambda constant: lambda inputs: module(*inputs))


def never(function: Any) -> Any:
    raise AssertionError("it is not cut") from sys.exception()


def regional(codes: AsRecorded | None = None) -> Ready:
    """As rounds are made ready on a CPU, but for the machine code."""
    regions = Regions(codes or AsRecorded())
    return lambda play: Regional(play, regions, never)


def graphs() -> int:
    """How many graphs were ever compiled, and how often a frame was broken into several."""
    return counters["stats"]["unique_graphs"] + sum(counters["graph_break"].values())


def static_methods(models: dict[str, Model], k: int, clock: Clock | None = None) -> dict[str, Speculate]:
    """Every method file whose rounds can be whole calls; the draft stands for every model but the target."""
    every = {need: models.get(need, models["draft"]) for name in methods() for need in needs(name)}
    built = {name: build(name, every, k, clock) for name in methods()}
    return {name: method for name, method in built.items() if method.drafter.static}


NAMES = list(static_methods(dict.fromkeys(("target", "draft"), Toy(torch.ones(1, 1))), 1))
STATIC = quick_or_slow(NAMES, lambda name: name == "chain")  # to compile all takes minutes


def pair(name: str, law: Sampling, dtype: torch.dtype, vocab: int = 32, fixed: bool = True) -> dict[str, Model]:
    """A tiny pair of one architecture; `fixed` as whole rounds need it."""
    roles = enumerate(("target", "draft"))
    return {role: Causal(network(name, vocab, seed, dtype), law, vocab, fixed) for seed, role in roles}


def smallest_pair(law: Sampling, fixed: bool) -> dict[str, Model]:
    """One layer, all matrices of one shape: every shape costs a compiler seconds."""
    shape = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = hf.LlamaConfig(num_hidden_layers=1, max_position_embeddings=128, **shape)  # type: ignore[arg-type]
    models: dict[str, Model] = {}
    for seed, role in enumerate(("target", "draft")):
        torch.manual_seed(seed)
        net = hf.AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
        for parameter in net.parameters():
            parameter.data *= 20 if parameter.ndim > 1 else 1
        models[role] = Causal(net, law, 16, fixed)
    return models


def whole(
    method: Speculate,
    ready: Ready,
    *,
    longest: int,
    new: int,
    rows: int = 1,
    eos: Sequence[int] = (),
    reaches: Sequence[int] = (),
) -> Whole:
    """The rounds of a method, ready for prompts of up to `longest` tokens."""
    length = buffer_length(longest, new, method.drafter.room)
    rounds = Whole(method, length, reaches or (length,), ready)
    rounds.prime(begin([[0, 0]] * rows, 1, method.drafter.room, eos, CPU, length), seeded([0] * rows, CPU))
    return rounds


def seen(trace: Trace) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """What no way of running rounds may change: the tokens and the counts."""
    return trace.tokens, [(r.drafted, r.surplus, r.tested, r.accepted, r.emitted) for r in trace.rounds]


# The law of a round, by outcomes that are known before it begins.


@dataclass
class Shapes:
    """A source that draws nothing but notes how many outcomes every elementary draw of a row has."""

    of: list[int] = field(default_factory=list)

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        self.of += [2] * prod(probs.shape[1:])
        return torch.zeros_like(probs, dtype=torch.bool)

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        self.of += [probs.shape[-1]] * prod(probs.shape[1:-1])
        return torch.zeros(probs.shape[:-1], dtype=torch.long)

    def combinations(self) -> Tensor:
        """[B, draws] every combination of outcomes."""
        return torch.tensor(list(product(*map(range, self.of))))


@dataclass
class Given(OutcomeSource):
    """A source whose draws find their outcomes in a table [B, draws]; weight [B] is the chance of those so far."""

    outcomes: Tensor
    weight: Tensor
    used: int = 0

    def _next(self, chances: Tensor) -> Tensor:
        rows, draws = chances.shape[0], prod(chances.shape[1:-1])
        found = self.outcomes[:, self.used : self.used + draws]
        self.used += draws
        here = chances.reshape(rows, draws, chances.shape[-1]).gather(2, found.unsqueeze(2)).squeeze(2)
        self.weight = self.weight * here.prod(1)
        return found.reshape(chances.shape[:-1])


@dataclass(frozen=True, eq=False)
class Tables(Toy):
    """Toys side by side: row b of a batch follows the table which[b] of the [M · size, V]. The host reads nothing."""

    which: Tensor
    size: int

    def number(self, context: Context) -> Tensor:
        number = torch.zeros_like(context.pos)
        for place in range(context.seq.shape[1]):
            longer = (number * self.vocab + 1 + context.seq[:, place]) % self.size
            number = torch.where(place <= context.pos, longer, number)
        return self.which * self.size + number

    def after(self, number: Tensor, token: Tensor) -> Tensor:
        within = number % self.size
        return number - within + (within * self.vocab + 1 + token) % self.size


@dataclass(frozen=True, eq=False)
class Bigrams(Toy):
    """The law after a token is its row of the table. The host reads nothing."""

    def number(self, context: Context) -> Tensor:
        return context.seq.gather(1, context.pos.unsqueeze(1)).squeeze(1)

    def after(self, number: Tensor, token: Tensor) -> Tensor:
        return token


def bigrams(vocab: int = 8) -> dict[str, Model]:
    """Two that are not far apart."""
    generator = torch.Generator().manual_seed(0)
    scores = [2 * torch.randn((vocab, vocab), generator=generator, dtype=torch.float64) for _ in range(2)]
    return {"target": Bigrams(scores[0].softmax(1)), "draft": Bigrams((scores[0] + scores[1] / 2).softmax(1))}
