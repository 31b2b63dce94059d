"""Which layers of a target draft best for it: layers are left out one by one, then swapped, by the predicted speedup.

Knows sets of layers and how they score; must not know networks, texts or clocks. The field says "skip set" for what is
left out (Draft & Verify, Zhang et al. 2023, arXiv 2309.08168, which searches by Bayesian optimisation).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from specbench.theory import formulas

K_MOST = 8  # the lookaheads that a prediction is made for end here
Kept = tuple[int, ...]  # layers in rising order


@dataclass(frozen=True)
class Scored:
    """A set of layers: its acceptance α on known texts, and c, a drafted token ÷ a step of the target."""

    kept: Kept
    alpha: float
    c: float

    @property
    def k(self) -> int:
        """The lookahead of 1 to 8 tokens that promises most."""
        return max(range(1, K_MOST + 1), key=lambda k: formulas.speedup(self.alpha, k, self.c))

    @property
    def speedup(self) -> float:
        """What the formula promises at that lookahead; of all layers exactly 1."""
        return formulas.speedup(self.alpha, self.k, self.c)


@dataclass(frozen=True)
class Move:
    """One step of a search: what was done, and the set that it led to."""

    done: str
    set: Scored


@dataclass(frozen=True)
class SearchPath:
    """The moves in their order, the first of which keeps all layers; `cut`: evaluations ran out before its end."""

    steps: tuple[Move, ...]
    evaluations: int
    cut: bool

    @property
    def best(self) -> Scored:
        """The set with the greatest predicted speedup of those that leave something out; of equal ones the first."""
        return max((step.set for step in self.steps[1:]), key=lambda found: found.speedup)


@dataclass
class Scoring:
    """The scores of all sets so far, at most `most` of them; `watch` is called with every new one."""

    score: Callable[[Kept], Scored]
    most: int
    watch: Callable[[int, Scored], None]
    known: dict[Kept, Scored] = field(default_factory=dict)
    cut: bool = False

    def of(self, kept: Kept) -> Scored:
        if kept not in self.known:
            self.known[kept] = self.score(kept)
            self.watch(len(self.known), self.known[kept])
        return self.known[kept]

    def best(self, moves: dict[Kept, str]) -> Move | None:
        """The best of the sets that some moves lead to; None without moves, or with too many to score them all."""
        if len(self.known) + len(moves.keys() - self.known.keys()) > self.most:
            self.cut = True
            return None
        found = max(map(self.of, moves), key=lambda one: (one.speedup, one.alpha), default=None)
        return None if found is None else Move(moves[found.kept], found)


def search(
    depth: int,
    score: Callable[[Kept], Scored],
    most: int,
    watch: Callable[[int, Scored], None] = lambda number, scored: None,
) -> SearchPath:
    """Leave out the layer that costs least until one is left; then swap layers of the best set until nothing improves.

    Every move looks at all sets that it can lead to, or is not made: at most `most` sets are scored. Deterministic as
    far as `score` is. `depth` is 2 or more, and `most` depth + 1 or more, so that one layer can be left out.
    """
    scores = Scoring(score, most, watch)
    steps = [Move("all layers", scores.of(tuple(range(depth))))]
    while step := scores.best(removals(steps[-1].set.kept)):
        steps.append(step)
    at = SearchPath(tuple(steps), 0, False).best
    while (step := scores.best(swaps(at.kept, depth))) and step.set.speedup > at.speedup:
        steps.append(step)
        at = step.set
    return SearchPath(tuple(steps), len(scores.known), scores.cut)


def removals(kept: Kept) -> dict[Kept, str]:
    """Every set with one layer less, by what it is; none of a single layer."""
    smaller = {tuple(layer for layer in kept if layer != gone): f"without {gone}" for gone in kept}
    return {one: done for one, done in smaller.items() if one}


def swaps(kept: Kept, depth: int) -> dict[Kept, str]:
    """Every set of as many layers with one of them another."""
    out = [layer for layer in range(depth) if layer not in kept]
    return {tuple(sorted({*kept, new} - {old})): f"{new} for {old}" for old in kept for new in out}


def slices(kept: Kept) -> Iterator[str]:
    """Layers as a name has them: 0, 1, 2, 5 → 0:3 and 5."""
    first = 0
    for place, layer in enumerate(kept):
        if place + 1 == len(kept) or kept[place + 1] != layer + 1:
            start = kept[first]
            yield str(start) if start == layer else f"{start}:{layer + 1}"
            first = place + 1


def name(kept: Kept) -> str:
    """The name of the network with these layers of the target, as method files have it."""
    return f"target[{','.join(slices(kept))}]"
