"""How far off a method must be for the z-tests of `specbench verify` to see it, on the shipped pair.

    python -m tests.benchmarks.power [--temperature 1.0] [--tokens 2000]

Chains of four drafted tokens, right and wrong in one place; every line is one decode of about so many tokens.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from specbench.backends.native import Native, open_pair
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.block import Block
from specbench.decoding.verifiers.lossy import Lenient, Typical
from specbench.decoding.verifiers.rejection import Rejection
from specbench.measure.lossless import PlainPass, Text, tallies
from specbench.measure.order import seed_of
from specbench.measure.plan import read_prompts
from specbench.models.network.causal import Causal
from specbench.results.statistics import all_together
from specbench.spec import RunSpec

K, NEW, PROMPTS = 4, 64, 16


class Misreporting(Causal):
    """A draft that says that it drew from its rows to a power, normalised."""

    power = 1.0

    def sample(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        ids, rows = super().sample(*arguments, **named)
        other = rows**self.power
        return ids, other / other.sum(-1, keepdim=True)


def chain(backend: Native, spec: RunSpec, rule: Verifier, power: float = 1.0, warmer: float = 1.0) -> Speculate:
    """Speculative sampling with a rule, a draft that reports a power of its rows, a target at another temperature."""
    law = backend.law(spec)
    draft = Misreporting(backend.network("draft"), law, backend.width)
    draft.power = power
    target = Causal(backend.network("target"), replace(law, temperature=law.temperature * warmer), backend.width)
    return Speculate(ModelDrafter(draft, K), target, rule)


def arms(backend: Native, spec: RunSpec) -> dict[str, Callable[[], Speculate]]:
    return {
        "chain": lambda: chain(backend, spec, Rejection()),
        "block": lambda: chain(backend, spec, Block()),
        **{f"lenient{rate}": lambda rate=rate: chain(backend, spec, Lenient(rate)) for rate in (0.9, 0.8, 0.5)},
        "typical": lambda: chain(backend, spec, Typical(0.09, 0.3)),
        **{f"q^{power}": lambda power=power: chain(backend, spec, Rejection(), power) for power in (1.5, 0.7)},
        "T*.95": lambda: chain(backend, spec, Rejection(), warmer=0.95),
    }


def texts(backend: Native, spec: RunSpec, method: Speculate, name: str, prompts: tuple[Prompt, ...], least: int) -> Any:
    """Prompts decoded again and again until there are so many tokens."""
    tokens = repeat = 0
    while tokens < least:
        for prompt in prompts:
            rng = seeded([seed_of(spec, prompt.id, repeat, name)], backend.device)
            to: Any = {"new": NEW, "eos": backend.eos(spec), "device": backend.device}
            with backend.gradless():
                (trace,) = decode(method, [prompt.ids], rng=rng, **to)
            tokens += len(trace.tokens)
            yield Text(prompt.ids, trace.tokens)
        repeat += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=2000)
    asked = parser.parse_args()
    spec = RunSpec(draft="demo-draft", k=K, limit=PROMPTS, temperature=asked.temperature, max_new_tokens=NEW)
    backend = open_pair([spec])
    backend.load()
    prompts = read_prompts(spec, backend, NEW + K + 1).prompts
    score, rival = (PlainPass(backend.network(name), backend.device) for name in ("target", "draft"))
    for name, method in arms(backend, spec).items():
        found = list(texts(backend, spec, method(), name, prompts, asked.tokens))
        pairs = list(tallies(found, score, asked.temperature, rival))
        surprise, leaning = all_together(a for a, _ in pairs), all_together(b for _, b in pairs if b is not None)
        print(f"{name:12s} {surprise.tokens} tokens, z {surprise.z:+.2f} {leaning.z:+.2f}", flush=True)


if __name__ == "__main__":
    main()
