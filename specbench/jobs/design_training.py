"""The training of a design: promising shapes by successive halving, each rung kept, so that a killed one is not lost.

Knows rungs and scores; how a draft is taught is a function that it is given.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM

from specbench.jobs.design_folder import Learned, Workplace
from specbench.jobs.design_networks import untrained
from specbench.jobs.design_shapes import Candidate
from specbench.measure.draft_latency import Latencies
from specbench.theory import optimum
from specbench.theory.design import best_choice
from specbench.theory.halving import Rung, successive_halving
from specbench.training.start.saving import save_draft

PROMISING = 0.9  # α from which a shape must pay at some lookahead to be trained
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Taught:
    """α and tokens per round at lookahead k on held-out text, after a draft has been taught."""

    alpha: float
    accepted: float
    k: int


# (draft, tokens to learn, number of the rung, folder for checkpoints) → what it is worth afterwards
Teach = Callable[[Any, int, int, Path], Taught]


@dataclass(frozen=True)
class School:
    """Where drafts are taught: the folder, the target's configuration and embedding, the seed, and how."""

    place: Workplace
    target: Any
    embedding: Tensor | None
    seed: int
    teach: Teach
    finish: Callable[[Path], None]  # puts beside the weights what makes them a checkpoint: the tokenizer

    def bring(self, candidate: Candidate, steps: Sequence[int], tokens: int) -> Learned:
        """A draft after so many tokens in all, the last of some steps on the way; what was learned before is kept."""
        if (known := self.place.learned(candidate.name, tokens)) is not None:
            return known
        number = steps.index(tokens)
        before = steps[number - 1] if number else 0
        folder = self.place.draft(candidate.name, tokens)
        student = self.network(candidate, before)
        taught = self.teach(student, tokens - before, number, folder / CHECKPOINTS)
        save_draft(student, folder)
        self.finish(folder)
        learned = Learned(tokens, taught.alpha, taught.accepted, taught.k)
        self.place.keep(candidate.name, learned)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        return learned

    def network(self, candidate: Candidate, tokens: int) -> Any:
        """A draft as it is after so many tokens, in float32."""
        if not tokens:
            return untrained(candidate, self.target, self.seed, self.embedding)
        return trained(self.place, candidate, tokens)


def trained(place: Workplace, candidate: Candidate, tokens: int) -> Any:
    """A draft as it was kept after so many tokens, in float32."""
    return AutoModelForCausalLM.from_pretrained(place.draft(candidate.name, tokens), local_files_only=True)


@dataclass(frozen=True)
class Speed:
    """What is known of the time of drafts, and the longest lookahead that is considered."""

    latencies: Latencies
    k_max: int

    def costs(self, name: str) -> Any:
        """Of a round with this draft, in steps of the target."""
        found = self.latencies.drafts[name]
        return self.latencies.target.costs(found.first, found.later)

    def predicted(self, name: str, alpha: float) -> float:
        """The speedup at the best lookahead."""
        return best_choice(alpha, self.costs(name), self.k_max).speedup

    def break_even(self, name: str) -> float | None:
        """The α above which some lookahead pays; None where none does."""
        return optimum.break_even_alpha_of((1.0, *self.costs(name).rounds(self.k_max)))

    def promising(self, name: str) -> bool:
        even = self.break_even(name)
        return even is not None and even <= PROMISING


def deepest(some: Sequence[Candidate], budget: int) -> Candidate:
    """The deepest shape of a budget that some have."""
    return max((one for one in some if one.budget == budget), key=lambda one: one.shape.layers)


def to_be_trained(candidates: Sequence[Candidate], speed: Speed) -> list[Candidate]:
    """The promising shapes and, for comparison, the deepest of every budget; all of them where none is promising."""
    promising = [one for one in candidates if speed.promising(one.name)]
    if not promising:
        return list(candidates)
    compared = {deepest(candidates, one.budget) for one in promising}
    return [one for one in candidates if one in promising or one in compared]


def halved(
    chosen: Sequence[Candidate], steps: Sequence[int], school: School, speed: Speed,
    watch: Callable[[Candidate, int, Learned], None],
) -> tuple[list[Rung[Candidate]], Mapping[str, Mapping[int, Learned]]]:  # fmt: skip
    """The rungs by predicted speedup, and what every draft was worth after each; the deepest shape of every budget that
    is kept goes on with the better half, for comparison."""
    known: dict[str, dict[int, Learned]] = {}

    def score(one: Candidate, tokens: int) -> float:
        learned = school.bring(one, steps, tokens)
        known.setdefault(one.name, {})[tokens] = learned
        watch(one, tokens, learned)
        return speed.predicted(one.name, learned.alpha)

    def besides(rung: Rung[Candidate], kept: Sequence[Candidate]) -> list[Candidate]:
        return [deepest(list(rung.scores), one.budget) for one in kept]

    return successive_halving(chosen, steps, score, besides), known
