"""What a draft is worth on text that it has not learned: α and tokens per round, in all and by category.

Knows the rows of two networks along known text; must not know how either was trained.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.decoding.divergences import overlap
from specbench.models.network.law import Law
from specbench.training.cache import Example, TokenCache
from specbench.training.learner import Batch, batch_of, hit, logits_of
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher


@dataclass(frozen=True)
class Figures:
    """alpha: mean Σ min(p, q) at the decoding temperature; accepted: tokens per round at lookahead K; tokens: how many
    both are means over."""

    alpha: float
    accepted: float
    tokens: int


@dataclass(frozen=True)
class Along:
    """One sequence of n tokens: at each the overlap Σ min(p, q), and the chance that the token itself is accepted."""

    category: str
    overlap: Tensor
    chance: Tensor


class OfCategory(Protocol):
    """Something that was measured on text of a category."""

    @property
    def category(self) -> str: ...


Some = TypeVar("Some", bound=OfCategory)


def in_all_and_by_category(
    found: Sequence[Some], mean: Callable[[Sequence[Some]], Figures]
) -> tuple[Figures, dict[str, Figures]]:
    """The mean of what was found, and of each category of it, by the name of the category."""
    names = sorted({one.category for one in found})
    categories = {name: [one for one in found if one.category == name] for name in names}
    return mean(found), {name: mean(some) for name, some in categories.items()}


class Judge:
    """How drafts of one teacher are judged, on the same held-out text every time.

    sampled: whether the text is the teacher's own at the temperature of the
    recipe. earlier: drafts beside the one that is judged; then a token counts that any of them likes best, at every
    temperature. Of a greedy teacher its tokens are kept, so that it reads the text once.
    """

    def __init__(
        self,
        teacher: Teacher,
        examples: Sequence[Example],
        recipe: Recipe,
        sampled: bool,
        earlier: Sequence[Any] = (),
    ) -> None:
        self.teacher, self.recipe, self.sampled = teacher, recipe, sampled
        self.earlier = earlier
        parts = by_length(examples, recipe.rows)
        self.batches = [batch_of(some, recipe.length, (recipe.seed, 1)).to(teacher.device) for some in parts]
        self.law = Law(0.0 if earlier else recipe.temperature)
        self.told: list[Tensor] = []
        self.covered: list[Tensor] = []

    def figures(self, student: Any) -> tuple[Figures, dict[str, Figures]]:
        """Of all text, and by category."""
        return in_all_and_by_category(self.sequences(student), self.mean)

    @torch.no_grad()
    def sequences(self, student: Any) -> list[Along]:
        """Of every sequence, always in the same order."""
        chances = self.greedy if self.law.certain else self.drawn
        both = zip(self.batches, *chances(student), strict=True)
        return [one for batch, shared, chance in both for one in along(batch, shared, chance)]

    def greedy(self, student: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Whether the teacher's token is drafted: [n] of every batch, as overlap and as chance."""
        if not self.told:
            self.told = [self.teacher.logits(batch).argmax(-1) for batch in self.batches]
            self.covered = [hit(self.earlier, *both) for both in zip(self.batches, self.told, strict=True)]
        same = [
            (covered | hit([student], batch, told)).double()
            for batch, told, covered in zip(self.batches, self.told, self.covered, strict=True)
        ]
        return same, same

    def drawn(self, student: Any) -> tuple[list[Tensor], list[Tensor]]:
        """The overlap of both distributions and the chance min(1, q ÷ p) of every token: [n] of every batch.

        Of text that the teacher has not drawn, the overlap is the chance.
        """
        shared, chances = [], []
        for batch in self.batches:
            p, q = self.teacher.rows(batch, self.law), self.law(logits_of(student, batch), self.teacher.width)
            shared.append(overlap(p, q).double().clamp(max=1))
            told = batch.following.unsqueeze(1)
            ratio = (q.gather(1, told) / p.gather(1, told)).squeeze(1).double().nan_to_num(0.0).clamp(max=1)
            chances.append(ratio if self.sampled else shared[-1])
        return shared, chances

    def mean(self, found: Sequence[Along]) -> Figures:
        """Pooled over tokens."""
        shared = torch.cat([one.overlap for one in found])
        return Figures(
            float(shared.mean()), tokens_per_round([one.chance for one in found], self.recipe.k), len(shared)
        )


def along(batch: Batch, shared: Tensor, chance: Tensor) -> list[Along]:
    """The sequences of a batch."""
    counts = batch.learned.sum(1).tolist()
    rows = zip(batch.examples, torch.split(shared.cpu(), counts), torch.split(chance.cpu(), counts), strict=True)
    return [Along(example.category, *both) for example, *both in rows]


def tokens_per_round(chances: Iterable[Tensor], k: int) -> float:
    """Expected tokens of a round with lookahead K: 1 + Σ_j P(the first j drafts are accepted).

    Along text x of the teacher, E Π_{i ≤ j} min(1, qᵢ(xᵢ) ÷ pᵢ(xᵢ)) is that probability, because
    Σ_x Π min(p, q) = Σ_x Π p · Π min(1, q ÷ p); the mean is over all places with j tokens after them.
    """
    chances = [one for one in chances if len(one)]
    expected = 1.0
    for level in range(1, k + 1):
        runs = [one.unfold(0, level, 1).prod(1) for one in chances if len(one) >= level]
        expected += float(torch.cat(runs).mean()) if runs else 0.0
    return expected


def sampled(cache: TokenCache, recipe: Recipe) -> bool:
    """Whether the text of a cache is the teacher's own, drawn from the distributions that drafts are judged by."""
    origin = cache.manifest.origin
    plain = origin.top_k is origin.top_p is origin.min_p is origin.eta is None
    return origin.kind == "answers" and plain and origin.temperature == recipe.temperature


def by_length(examples: Sequence[Example], rows: int) -> Iterator[Sequence[Example]]:
    """Batches of sequences of similar length."""
    ordered = sorted(examples, key=lambda example: len(example.ids))
    for start in range(0, len(ordered), rows):
        yield ordered[start : start + rows]


def chosen(examples: Sequence[Example], most: int) -> list[Example]:
    """At most so many examples: evenly over the categories, the same ones every time."""
    categories: dict[str, list[int]] = {}
    for number in range(len(examples)):
        categories.setdefault(examples[number].category, []).append(number)
    rounds = zip_longest(*categories.values())
    found = [number for numbers in rounds for number in numbers if number is not None]
    return [examples[number] for number in sorted(found[:most])]
