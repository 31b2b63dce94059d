"""The evaluation of a draft on held-out text, overall and by category: α, tokens per round, the
learning curve, and the model card with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.divergences import overlap
from specbench.models.network.sampling import Sampling
from specbench.training.cache import Example, TokenCache
from specbench.training.learner import Batch, batch_of, hit, logits_of
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher
from specbench.wording import literal, verbatim


@dataclass(frozen=True)
class Figures:
    """alpha: mean Σ min(p, q) at the decoding temperature; accepted: tokens per round at
    lookahead K; tokens: the number over which both are averaged."""

    alpha: float
    accepted: float
    tokens: int


@dataclass(frozen=True)
class Along:
    """One sequence of T positions, some of them `learned` [T]: at each the overlap [T] Σ min(p, q) of the
    first draft, and the probability [K, T] that draft k is accepted there if all before it were."""

    category: str
    learned: Tensor
    overlap: Tensor
    chance: Tensor


def figures_of(found: Sequence[Along], k: int) -> tuple[Figures, dict[str, Figures]]:
    """The figures pooled over all positions, and over those of each category by name."""
    names = sorted({one.category for one in found})
    categories = {name: [one for one in found if one.category == name] for name in names}
    return pooled(found, k), {name: pooled(some, k) for name, some in categories.items()}


def pooled(found: Sequence[Along], k: int) -> Figures:
    shared = torch.cat([torch.zeros(0, dtype=torch.float64), *(one.overlap[one.learned] for one in found)])
    return Figures(float(shared.mean()) if len(shared) else 0.0, tokens_per_round(found, k), len(shared))


class Judge:
    """The evaluation of one teacher's drafts, always on the same held-out text.

    earlier: drafts used together with the judged one; then a token counts if it is the likeliest of any of
    them, at every temperature. The tokens of a greedy teacher are kept, so that it reads the text once.
    """

    def __init__(self, teacher: Teacher, cache: TokenCache, recipe: Recipe, earlier: Sequence[Any] = ()) -> None:
        self.teacher, self.recipe, self.earlier, self.sampled = teacher, recipe, earlier, sampled(cache, recipe)
        self.batches = held_out(cache, recipe, teacher.device)
        self.sampling = Sampling(0.0 if earlier else recipe.temperature)
        self.targets: list[tuple[Tensor, Tensor]] = []

    def figures(self, student: Any) -> tuple[Figures, dict[str, Figures]]:
        return figures_of(self.sequences(student), self.recipe.k)

    @torch.no_grad()
    def sequences(self, student: Any) -> list[Along]:
        """The results for every sequence, always in the same order."""
        chances = self.greedy(student) if self.sampling.certain else self.drawn(student)
        return [one for batch, both in zip(self.batches, chances, strict=True) for one in self.along(batch, *both)]

    def greedy(self, student: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Whether the teacher's token is drafted: [n] of every batch, as overlap and as chance."""
        if not self.targets:
            best = [self.teacher.logits(batch).argmax(-1) for batch in self.batches]
            self.targets = [(one, hit(self.earlier, batch, one)) for batch, one in zip(self.batches, best, strict=True)]
        for batch, (one, covered) in zip(self.batches, self.targets, strict=True):
            yield ((covered | hit([student], batch, one)).double(),) * 2

    def drawn(self, student: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """The overlap of both distributions, and the chance of every token: [n] of every batch, see `accepted`."""
        for batch in self.batches:
            p, q = self.teacher.rows(batch, self.sampling), self.sampling(logits_of(student, batch), self.teacher.width)
            yield accepted(p, q, batch.following, self.sampled)

    def along(self, batch: Batch, shared: Tensor, chance: Tensor) -> Iterator[Along]:
        counts = batch.learned.sum(1).tolist()
        rows = zip(batch.examples, torch.split(shared.cpu(), counts), torch.split(chance.cpu(), counts), strict=True)
        for example, together, alone in rows:
            learned = torch.ones(len(together), dtype=torch.bool)
            yield Along(example.category, learned, together, alone.expand(self.recipe.k, -1))


def accepted(p: Tensor, q: Tensor, tokens: Tensor, sampled: bool) -> tuple[Tensor, Tensor]:
    """[n] the overlap Σ min(p, q) of rows [n, V], and the probability that a draft is accepted: min(1, q ÷ p) of the
    token if the teacher has drawn it from p (`sampled`), else the overlap."""
    shared = overlap(p, q).double().clamp(max=1)
    if not sampled:
        return shared, shared
    index = tokens.unsqueeze(1)
    ratio = (q.gather(1, index) / p.gather(1, index)).squeeze(1).double()
    return shared, ratio.nan_to_num(0.0).clamp(max=1)


def tokens_per_round(found: Sequence[Along], k: int) -> float:
    """Expected tokens of a round with lookahead K: 1 + Σ_j P(the first j drafts are accepted).

    A round that begins at r has Π_i chance[i, r + i]. Along text x of the teacher, E Π_{i ≤ j} min(1, qᵢ ÷ pᵢ)
    at xᵢ is that probability, because Σ_x Π min(p, q) = Σ_x Π p · Π min(1, q ÷ p); the mean is over all
    positions with j learned tokens after them.
    """
    expected = 1.0
    for level in range(1, k + 1):
        runs = [chain(one, level) for one in found if len(one.learned) >= level]
        pooled = torch.cat([torch.zeros(0, dtype=torch.float64), *runs])
        expected += float(pooled.mean()) if len(pooled) else 0.0
    return expected


def chain(one: Along, level: int) -> Tensor:
    """[m] the probability that `level` drafts are accepted, for every round that begins in the learned text."""
    starts = len(one.learned) - level + 1
    parts = [one.chance[step, step : step + starts] for step in range(level)]
    return torch.stack(parts).prod(0)[one.learned.unfold(0, level, 1).all(1)]


def sampled(cache: TokenCache, recipe: Recipe) -> bool:
    """Whether the text of a cache is the teacher's own, drawn from the distributions used in the evaluation."""
    origin = cache.manifest.origin
    plain = origin.top_k is origin.top_p is origin.min_p is origin.eta is None
    return origin.kind == "answers" and plain and origin.temperature == recipe.temperature


def held_out(cache: TokenCache, recipe: Recipe, device: torch.device) -> list[Batch]:
    """The held-out sequences that a recipe judges by, in batches of similar length."""
    ordered = sorted(chosen(cache.held_out, recipe.held_out), key=lambda example: len(example.ids))
    parts = (ordered[start : start + recipe.rows] for start in range(0, len(ordered), recipe.rows))
    return [batch_of(some, recipe.length, (recipe.seed, 1)).to(device) for some in parts]


def chosen(examples: Sequence[Example], most: int) -> list[Example]:
    """At most `most` examples: evenly over the categories, always the same ones."""
    categories: dict[str, list[int]] = {}
    for number in range(len(examples)):
        categories.setdefault(examples[number].category, []).append(number)
    rounds = zip_longest(*categories.values())
    found = [number for numbers in rounds for number in numbers if number is not None]
    return [examples[number] for number in sorted(found[:most])]


@dataclass(frozen=True)
class Point:
    """A point on the learning curve: tokens learned so far, the loss since the last point, and the held-out figures."""

    tokens: int
    seconds: float
    loss: float | None
    alpha: float
    accepted: float
    by_category: Mapping[str, Figures] = field(default_factory=dict)


@dataclass
class Progress:
    """The progress of a run. `loss` is the mean over the `passed` steps since the last evaluation; `since` counts the
    evaluations after the best one since the first step; `seconds` are those of all processes that continued it."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float | None = None
    since: int = 0
    passed: int = 0
    curve: list[Point] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max((point.accepted for point in self.curve), default=0.0)

    def learned(self, loss: float, tokens: int) -> None:
        self.loss = ((self.loss or 0.0) * self.passed + loss) / (self.passed + 1)
        self.step, self.tokens, self.passed = self.step + 1, self.tokens + tokens, self.passed + 1

    def add(self, figures: Figures, by_category: Mapping[str, Figures]) -> None:
        """Record an evaluation. The one before any step does not count: a pretrained draft
        loses at first, while the rate is high, and gains when it falls."""
        learned = [point.accepted for point in self.curve if point.tokens]
        better = not learned or figures.accepted > max(learned)
        self.since = 0 if better else self.since + 1
        self.curve.append(Point(self.tokens, self.seconds, self.loss, figures.alpha, figures.accepted, by_category))
        self.loss, self.passed = None, 0


@dataclass(frozen=True)
class Trained:
    """The result of a run: its best figures on held-out text, also by category, its curve, and why it ended."""

    figures: Figures
    by_category: Mapping[str, Figures]
    progress: Progress
    ended: str = ""

    @property
    def categories(self) -> dict[str, Figures]:
        """The figures of each category, if there are several, and of all."""
        return {**(self.by_category if len(self.by_category) > 1 else {}), "all": self.figures}


@dataclass(frozen=True)
class Provenance:
    """The origin of a draft, in words: its teacher's name and source, its starting point and shape, its data.

    licence: the card's licence, as an identifier of the hub if known; command: reproduces it.
    what: the kind of draft; alpha: what α is averaged over.
    """

    target: str
    source: str
    start: str
    shape: str
    parameters: int
    data: Sequence[str]
    licence: str
    command: str
    what: str = "small language model"
    alpha: str = "tokens"


CARD = """---
license: {licence}
base_model: {base}
tags: [speculative-decoding, draft]
---
# A draft for {target}

A {what} that drafts tokens for {target} in speculative decoding. It was trained to be accepted by that
target, and for nothing else.

| | |
|---|---|
| target | {target} ({source}) |
| begun as | {start} |
| shape | {shape} |
| parameters | {parameters:,} |
| tokens learned | {tokens:,} |
| loss | {loss} |
| judged at | temperature {temperature:g}, lookahead K {k} |

## What is accepted, on held-out text

{figures}

α is the mean of Σ min(p, q) over {alpha}; tokens per round include the one that the target adds.

## Learning curve

{curve}

By category: [curve.csv](curve.csv).

## Data and licence

{data}

Licence: {licence}. It should be that of the target and of the data; whoever publishes these weights checks both.

## Make it again

{command}

Settings: {settings}
"""


def model_card(origin: Provenance, recipe: Recipe, done: Trained) -> str:
    """The card as Markdown with the front matter for the hub."""
    rows, curve = done.categories.items(), done.progress.curve
    lines = [f"| {literal(name)} | {one.tokens:,} | {one.alpha:.3f} | {one.accepted:.2f} |" for name, one in rows]
    points = [
        f"| {point.tokens:,} | {'' if point.loss is None else f'{point.loss:.3f}'} | {point.alpha:.3f} | "
        f"{point.accepted:.2f} |"
        for point in curve
    ]
    return CARD.format(
        **{name: literal(getattr(origin, name)) for name in ("target", "source", "start", "shape", "what")},
        licence=origin.licence,
        base=origin.target,
        alpha=origin.alpha,
        parameters=origin.parameters,
        tokens=curve[-1].tokens,
        loss=", then ".join(recipe.losses),
        temperature=recipe.temperature,
        k=recipe.k,
        figures="\n".join(["| category | tokens | α | tokens per round |", "|---|---|---|---|", *lines]),
        curve="\n".join(["| tokens learned | loss | α | tokens per round |", "|---|---|---|---|", *points]),
        data="\n".join(f"* {literal(line)}" for line in origin.data),
        command=verbatim(origin.command),
        settings=", ".join(f"{name} {value}" for name, value in recipe.model_dump(mode="json").items()),
    )


def curve_rows(curve: Sequence[Point]) -> Iterator[dict[str, Any]]:
    """The learning curve as records: for every evaluation one over all text, and one per category."""
    for point in curve:
        common = {"tokens_learned": point.tokens, "seconds": point.seconds, "loss": point.loss}
        total = Figures(point.alpha, point.accepted, sum(one.tokens for one in point.by_category.values()))
        for name, one in {"all": total, **point.by_category}.items():
            figures = {"alpha": one.alpha, "tokens_per_round": one.accepted, "held_out_tokens": one.tokens}
            yield {"category": name, **common, **figures}
