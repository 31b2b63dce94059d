"""The tests of an audit: of sampled text against the baseline's log-probabilities, and of counts of events.

Under the null hypothesis a token is drawn from the baseline's distribution at its position, which the baseline's 20
best log-probabilities give in part. Three events of every token are tested: it lies outside of the known tokens, it is
the best one, and its place in the order of the known ones. Deviations of both signs cancel in a sum, so each is tested
over all tokens, in blocks of positions, and for overdispersion over answers.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom, gamma, poisson

from specbench.judge.significance import FALSE_ALARM

Numbers = NDArray[np.float64]
KNOWN = 20  # log-probabilities that vLLM gives per position by default
BLOCKS = 8  # of positions
BANDS = 4  # of probabilities
LAST = 4  # tokens before one, as many as a round may have
DRAWS = 2000  # simulations of an overdispersion; beyond what they can show, its moments decide
LEAST = 0.5  # variance of an answer's sum below which it is left out of an overdispersion
POWER = 0.95  # of the smallest effect that a test shows


@dataclass(frozen=True)
class Sampler:
    """The sampling fields that change a distribution; None and 0 are neutral."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """One position by the baseline: the token there, and the log-probabilities of its best tokens, descending.

    They are those of the model itself, before temperature and all other sampling fields.
    """

    token: int
    top: tuple[tuple[int, float], ...]

    def of(self, token: int) -> float | None:
        """The log-probability of a token; None if it is not among the best."""
        return next((value for known, value in self.top if known == token), None)

    def without(self, banned: Collection[int]) -> "Scored":
        """The same without tokens that are never drawn, the others renormalised."""
        rest = tuple(one for one in self.top if one[0] not in banned)
        if not rest or len(rest) == len(self.top):
            return self
        mass = math.fsum(math.exp(value) for token, value in self.top if token in banned)
        scale = math.log1p(-min(mass, 1 - 1e-9))
        return Scored(self.token, tuple((token, value - scale) for token, value in rest))

    @property
    def lead(self) -> float:
        """How far the second best token is below the best one, in nats."""
        return self.top[0][1] - self.top[1][1] if len(self.top) > 1 else math.inf


@dataclass(frozen=True)
class Step:
    """The null distribution of one sampled token, and what was drawn.

    probs: of the known tokens, descending, given that the token is one of them. outside: the probability of all
    others; None where it is unknown. drawn: the place of the token among the known ones; None for another token.
    recent: the probability of the last tokens before it, given that it is a known one, and whether it is one of them.
    """

    probs: tuple[float, ...]
    outside: float | None
    drawn: int | None
    recent: tuple[float, bool] = (0.0, False)


def step_of(found: Scored, sampler: Sampler, before: Sequence[int], floor: float) -> Step | None:
    """The null distribution of a token after those sampled `before`; None where the known ones do not determine it, or
    where rounding up to `floor` nats decides whether it belongs to them."""
    best = shifted(found.top, sampler, before)
    scale = 1 / sampler.temperature
    kept, lowest = kept_of(best, sampler, floor)
    if kept is None:
        return None
    inside, beyond = best[:kept], best[kept:]
    weights = np.exp([(value - inside[0][1]) * scale for _, value in inside])
    probs = tuple((weights / weights.sum()).tolist())
    drawn = next((place for place, (token, _) in enumerate(inside) if token == found.token), None)
    last = set(before[-LAST:])
    chance = math.fsum(p for p, (token, _) in zip(probs, inside, strict=True) if token in last)
    recent = (chance, drawn is not None and found.token in last)
    if lowest is not None:
        near = any(token == found.token and value >= lowest for token, value in beyond)
        return None if drawn is None and (near or not beyond) else Step(probs, 0.0, drawn, recent)
    plain = sampler.temperature == 1 and best is found.top
    return Step(probs, max(1 - math.fsum(math.exp(v) for _, v in best), 0.0) if plain else None, drawn, recent)


def shifted(
    top: tuple[tuple[int, float], ...], sampler: Sampler, before: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """The best tokens after penalties and biases, descending: correct up to a constant."""
    if not (sampler.presence or sampler.frequency or sampler.bias):
        return top
    moved = []
    for token, value in top:
        seen = before.count(token)
        penalty = sampler.presence * (seen > 0) + sampler.frequency * seen
        moved.append((token, value - penalty + sampler.bias.get(token, 0.0)))
    return tuple(sorted(moved, key=lambda one: -one[1]))


def kept_of(best: Sequence[tuple[int, float]], sampler: Sampler, floor: float) -> tuple[int | None, float | None]:
    """The number of known tokens that a sampler keeps, None if that is unknown; and the least log-probability of a
    token that rounding may add to them, None if it keeps others, too."""
    kept, edge = len(best), None
    if sampler.top_k:
        kept = sampler.top_k
        edge = best[min(kept, len(best)) - 1][1]
    elif sampler.min_p is not None:
        edge = best[0][1] + math.log(sampler.min_p)
        kept = sum(value >= edge for _, value in best)
    elif sampler.top_p is not None:
        mass = np.cumsum(np.exp([value for _, value in best]))
        kept = int(np.searchsorted(mass, sampler.top_p)) + 1
        unsure = max(1e-3, 4 * floor * sampler.top_p * (1 - sampler.top_p))
        kept = len(best) if np.any(np.abs(mass - sampler.top_p) < unsure) else kept
        edge = best[min(kept, len(best)) - 1][1]
    if edge is None:
        return kept, None
    return (kept, edge - 2 * floor) if kept < len(best) else (None, None)


# --- tests of events --------------------------------------------------------------------------------------------------

OUTSIDE, BEST, ORDER = "outside the best tokens", "the best token", "order of the best tokens"
RECENT = f"one of the {LAST} tokens before"


@dataclass(frozen=True)
class Deviation:
    """The result of one test: its subject, two-sided p, and the deviation in standard errors.

    tokens: that it is over. found, expected: the mean of its values. smallest: the smallest change of a share that such
    a test finds in 95 of 100 cases; NaN where it is not about a share.
    """

    name: str
    p: float
    z: float
    tokens: int
    found: float
    expected: float
    smallest: float = math.nan


@dataclass(frozen=True)
class Events:
    """Values of tokens with their means under the null [answers, positions], NaN where there is none.

    They are 0 or 1 with their means as chances; or, with `waits`, drawn from the exponential distribution of mean 1.
    """

    values: Numbers
    means: Numbers
    waits: bool = False

    @property
    def known(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.means)

    @property
    def variances(self) -> Numbers:
        return self.means * 1.0 if self.waits else self.means * (1 - self.means)

    def where(self, chosen: NDArray[np.bool_]) -> "Events":
        """Some of them; `chosen` is broadcast."""
        return Events(self.values, np.where(chosen, self.means, math.nan), self.waits)

    def p(self) -> float:
        """The exact two-sided p of the sum: by a gamma distribution, or by that of a number of unlike events."""
        known = self.known
        total, many = float(self.values[known].sum()), int(known.sum())
        if self.waits:
            return min(1.0, 2 * float(min(gamma.cdf(total, many), gamma.sf(total, many)))) if many else 1.0
        chances = self.means[known]
        if self.values[known][chances <= 0].any():
            return 0.0
        return two_tails(poisson_binomial(chances[chances > 0]), round(total))

    def deviation(self, name: str) -> Deviation:
        """The test of the sum."""
        known = self.known
        many, spread = int(known.sum()), math.sqrt(float(self.variances[known].sum()))
        found, expected = float(self.values[known].sum()), float(self.means[known].sum())
        z = (found - expected) / spread if spread else 0.0
        reach = float(ndtri(1 - FALSE_ALARM / 100) + ndtri(POWER)) * spread
        smallest = math.nan if self.waits or not many else max(reach, 3.0) / many
        return Deviation(name, self.p(), z, many, found / max(many, 1), expected / max(many, 1), smallest)


def deviations(answers: Sequence[Sequence[Step | None]], seed: int = 0) -> list[Deviation]:
    """All tests of the answers of one sampler: of each kind of event over all tokens, in the block of positions and in
    the band of chances that deviate most (p times their number), and for overdispersion over answers."""
    rng, found = np.random.default_rng(seed), list[Deviation]()
    for name, events in events_of(answers, rng).items():
        if events.known.any():
            found += [events.deviation(name), overdispersion(name, events, rng)]
            for parts in (in_blocks(events), in_bands(events)):
                worst = min(parts, key=lambda one: one.p)
                found.append(replace(worst, name=f"{name}, {worst.name}", p=min(1.0, worst.p * len(parts))))
    return found


def events_of(answers: Sequence[Sequence[Step | None]], rng: np.random.Generator) -> dict[str, Events]:
    """The events of every kind."""
    kinds: dict[str, Callable[[Step], tuple[float, float] | None]] = {
        OUTSIDE: outside_of,
        BEST: best_of,
        RECENT: recent_of,
        ORDER: lambda step: order_of(step, rng),
    }
    shape = (2, len(answers), max(map(len, answers), default=0))
    made = {name: np.full(shape, math.nan) for name in kinds}
    for row, answer in enumerate(answers):
        for column, step in enumerate(answer):
            for name, kind in kinds.items():
                if step is not None and (found := kind(step)) is not None:
                    made[name][:, row, column] = found
    return {name: Events(values, means, name == ORDER) for name, (values, means) in made.items()}


def outside_of(step: Step) -> tuple[float, float] | None:
    """Whether a token is none of the known ones, and the chance of that."""
    return None if step.outside is None else (float(step.drawn is None), step.outside)


def best_of(step: Step) -> tuple[float, float] | None:
    """Whether a token is the best one, and the chance of that: among the known ones, where only they are."""
    if step.outside is None and step.drawn is None:
        return None
    return float(step.drawn == 0), step.probs[0] * (1 - (step.outside or 0.0))


def recent_of(step: Step) -> tuple[float, float] | None:
    """Whether a known token is one of the last ones, where it may be."""
    return (float(step.recent[1]), step.recent[0]) if step.drawn is not None and step.recent[0] > 0 else None


def order_of(step: Step, rng: np.random.Generator) -> tuple[float, float] | None:
    """−log of the chance of this place among the known tokens or a later one, uniform within its step: then it is
    exponentially distributed and independent of all before it (Rosenblatt 1952), whatever the distributions were."""
    if step.drawn is None:
        return None
    later = math.fsum(step.probs[step.drawn + 1 :])
    return -math.log(max(later + step.probs[step.drawn] * (1 - float(rng.random())), 1e-300)), 1.0


def in_blocks(events: Events) -> list[Deviation]:
    """The tests of the sums in up to BLOCKS blocks of positions."""
    columns = np.arange(events.means.shape[1])
    edges = np.unique(np.linspace(0, len(columns), BLOCKS + 1).astype(int)).tolist()
    parts = [(f"tokens {a + 1} to {b} of an answer", (columns >= a) & (columns < b)) for a, b in pairwise(edges)]
    return [part.deviation(name) for name, chosen in parts if (part := events.where(chosen)).known.any()]


def in_bands(events: Events) -> list[Deviation]:
    """The tests of the sums in up to BANDS bands of chances: a rule may take what is likely too often, and what is not
    too rarely."""
    edges = np.unique(np.quantile(events.means[events.known], np.linspace(0, 1, BANDS + 1))).tolist()
    edges[-1] += 1.0  # with the largest chance itself
    parts = [(f"chances from {a:.2g} on", (events.means >= a) & (events.means < b)) for a, b in pairwise(edges)]
    found = [part.deviation(name) for name, chosen in parts if (part := events.where(chosen)).known.any()]
    return found or [events.deviation("all chances")]


def overdispersion(name: str, events: Events, rng: np.random.Generator) -> Deviation:
    """Whether the sums of answers spread more than chance explains: Σ z² over answers against simulations of it, and
    beyond what these can show against a gamma distribution of their mean and variance."""
    rows = np.nansum(events.variances, axis=1) >= LEAST
    values, means = events.values[rows], events.means[rows]
    known = ~np.isnan(means)
    if not known.any():
        return Deviation(f"{name}, spread over answers", 1.0, 0.0, 0, math.nan, math.nan)
    variances, flat = np.nansum(events.variances[rows], axis=1), means[known]
    starts = np.concatenate(([0], known.sum(axis=1).cumsum()[:-1]))

    def spread(drawn: Numbers) -> Numbers:
        return np.asarray((np.add.reduceat(drawn - flat, starts, axis=-1) ** 2 / variances).sum(-1))

    draws = max(200, min(DRAWS, (1 << 23) // len(flat)))
    shape = (draws, len(flat))
    null = spread(rng.exponential(size=shape) if events.waits else (rng.random(shape) < flat).astype(float))
    found, mean, sd = float(spread(values[known])), float(null.mean()), float(null.std())
    above = int((null >= found).sum())
    p = (
        (above + 1) / (draws + 1)
        if above > 9 or not sd
        else float(gamma.sf(found, (mean / sd) ** 2, scale=sd * sd / mean))
    )
    return Deviation(f"{name}, spread over answers", p, (found - mean) / sd if sd else 0.0, len(flat), found, mean)


def poisson_binomial(chances: Numbers) -> Numbers:
    """The distribution of the number of independent events [n + 1]: the product of polynomials of degree 1."""
    if len(chances) <= 1:
        return np.array([1 - chances[0], chances[0]]) if len(chances) else np.ones(1)
    half = len(chances) // 2
    return np.convolve(poisson_binomial(chances[:half]), poisson_binomial(chances[half:]))


def two_tails(distribution: Numbers, count: int) -> float:
    """Twice the smaller tail, both with the count itself."""
    low, high = float(distribution[: count + 1].sum()), float(distribution[count:].sum())
    return min(1.0, 2 * min(low, high))


# --- tests of counts --------------------------------------------------------------------------------------------------


def too_many(count: int, expected: float) -> float:
    """The one-sided p of a count by a Poisson distribution."""
    return float(poisson.sf(count - 1, expected)) if expected > 0 else float(count == 0)


def too_few(count: int, of: int, share: float) -> float:
    """The one-sided p of a count of events of a known share."""
    return float(binom.cdf(count, of, share))


def permutation(pairs: Sequence[tuple[float, float]], seed: int = 0, draws: int = 20_000) -> float:
    """The two-sided p of a difference of means by exchanging the values of pairs (Fisher 1935)."""
    apart = np.array([other - one for one, other in pairs], dtype=float)
    if not apart.any():
        return 1.0
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (draws, len(apart)))
    return float((np.sum(np.abs(signs @ apart) >= abs(apart.sum()) - 1e-9) + 1) / (draws + 1))
