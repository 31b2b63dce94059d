"""What heads learn and are judged by: they are accepted more often, as often as they are when they draft."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.divergences import ForwardKL
from specbench.decoding.randomness import seeded
from specbench.decoding.types import point_mass
from specbench.jobs.training.start import unused
from specbench.models.heads.build import joined
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling, reduce_head
from specbench.training.cache import Example
from specbench.training.distil import Kept, pace
from specbench.training.evaluation import Along, tokens_per_round
from specbench.training.heads import HeadLesson, Masked, renormalised, weighted
from specbench.training.new_heads import HeadKind, HeadOptions, beginning
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher
from tests.support.cases import quick_or_slow
from tests.support.learning import VOCABULARY, cache, examples, llama, train
from tests.support.tiny import CPU, context_of

TARGET = llama(3)
TEACHER = Teacher(TARGET)
CACHE = cache(examples(40), examples(8, seed=9))
RECIPE = Recipe(tokens=600, rows=4, rate=5e-3, evaluations=4, patience=9, k=3, temperature=1.0)
KNOWN = [number for number in range(VOCABULARY) if number % 4]
KINDS: list[tuple[HeadKind, list[int] | None]] = [
    ("eagle3", None),
    ("eagle3", KNOWN),
    ("medusa", None),
    ("medusa", KNOWN),
    ("mtp", None),
]
NAMES = [f"{kind}, {'some' if known else 'all'} tokens" for kind, known in KINDS]
kinds = pytest.mark.parametrize(
    ("kind", "known"), quick_or_slow(KINDS, lambda kind, known: (known is None) == (kind == "mtp")), ids=NAMES
)


def head(kind: HeadKind, known: list[int] | None = None, seed: int = 0) -> Any:
    return beginning(kind, TARGET, HeadOptions(known, 3, "target", seed=seed))[0]


def lesson(student: Any, recipe: Recipe = RECIPE, some: Any = CACHE) -> HeadLesson:
    return HeadLesson(TEACHER, student.head.taps, some, recipe, 3)


@kinds
def test_a_trained_head_is_accepted_more_often(kind: HeadKind, known: list[int] | None) -> None:
    student = head(kind, known)
    recipe = RECIPE.model_copy(update={"tokens": 1800})
    done = train(student, TEACHER, CACHE, recipe, lesson=lesson(student, recipe))
    first, *_ = done.progress.curve
    assert done.figures.accepted > first.accepted + 0.05
    assert done.figures.alpha > first.alpha
    assert done.figures.tokens == sum(one.tokens for one in done.by_category.values())
    assert all(weight.isfinite().all() for weight in student.parameters())
    assert not any(weight.requires_grad for weight in TARGET.parameters())


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all tokens", "some tokens"])
def test_a_draft_learns_to_go_on_through_masks(known: list[int] | None) -> None:
    network = llama(2, seed=1) if known is None else reduce_head(llama(2, seed=1), known)
    student, recipe = Masked(network, VOCABULARY - 1), RECIPE.model_copy(update={"tokens": 1800})
    one = HeadLesson(TEACHER, (), CACHE, recipe, 3)
    done = train(student, TEACHER, CACHE, recipe, lesson=one)
    first, *_ = done.progress.curve
    assert done.figures.accepted > first.accepted + 0.05


def test_the_mask_is_the_token_that_the_text_has_least_often() -> None:
    assert unused(torch.tensor([3, 0, 0, 1, 0]), {4}, 5) == 2
    assert unused(torch.tensor([3, 2, 5]), {1}, 2) == 0


class KilledError(Exception):
    pass


@pytest.mark.parametrize("kind", ["eagle3", pytest.param("medusa", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_weights(kind: HeadKind, tmp_path: Path) -> None:
    def kept(name: str) -> Kept:
        return Kept(tmp_path / name, lambda network, done: None, every=0.0)

    def kill(progress: Any, recipe: Recipe) -> None:
        if progress.step == 4:
            raise KilledError

    whole, killed, again = head(kind), head(kind), head(kind, seed=5)
    done = train(whole, TEACHER, CACHE, RECIPE, kept("whole"), lesson=lesson(whole))
    with pytest.raises(KilledError):
        train(killed, TEACHER, CACHE, RECIPE, kept("killed"), kill, lesson=lesson(killed))
    other = train(again, TEACHER, CACHE, RECIPE, kept("killed"), lesson=lesson(again))
    assert other.figures == done.figures
    theirs = again.state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in whole.state_dict().items())


def test_the_pace_is_that_of_the_lesson() -> None:
    student = head("medusa")
    found = pace(student, TEACHER, CACHE, RECIPE, lesson(student), least=0.0)
    assert found.speed > 0
    fresh = head("medusa").state_dict()
    assert all(torch.equal(weight, fresh[name]) for name, weight in student.state_dict().items())


# --- judging ----------------------------------------------------------------------------------------------------------


def greedy(prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt])
    for _ in range(new):
        ids = torch.cat([ids, TARGET(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return list(map(int, ids[0]))


@kinds
def test_tokens_per_round_are_those_of_rounds_that_begin_at_every_place(
    kind: HeadKind, known: list[int] | None
) -> None:
    """On the greedy text of the target itself: every draft that it would make is held against that text."""
    recipe, k = RECIPE.model_copy(update={"temperature": 0.0}), 3
    some = [Example(greedy([n + 1, 3 * n % 7], 12), 2, "a", str(n)) for n in range(6)]
    student = head(kind, known)
    train(student, TEACHER, cache(some, some), recipe, lesson=lesson(student, recipe, cache(some, some)))
    found, _ = lesson(student, recipe, cache(some, some)).figures(student)
    student.head.dtype = torch.float32
    target, draft = joined(Causal(TARGET, Sampling(0.0), VOCABULARY), student.head, k)
    hits: list[list[bool]] = [[] for _ in range(k)]
    for text in (list(one.ids) for one in some):
        for begun in range(2, len(text)):
            context = context_of([text[:begun]], k + 1, k)
            target.start(context)
            draft.start(context)
            drafted = draft.sample(context, k, seeded([0], CPU))[0][0].tolist()
            for level in range(min(k, len(text) - begun)):
                hits[level].append(drafted[: level + 1] == text[begun : begun + level + 1])
    assert any(hits[0])
    assert found.accepted == pytest.approx(1 + sum(sum(level) / len(level) for level in hits), abs=1e-9)


def test_rounds_are_pooled_over_all_places_where_one_can_begin() -> None:
    learned = torch.tensor([False, True, True, True])
    chance = torch.tensor([[0.9, 0.5, 0.4, 0.2], [0.9, 0.9, 0.5, 0.25]], dtype=torch.float64)
    one = Along("a", learned, chance[0], chance)
    second = (0.5 * 0.5 + 0.4 * 0.25) / 2  # rounds that begin at places 1 and 2
    assert tokens_per_round([one], 2) == pytest.approx(1 + (0.5 + 0.4 + 0.2) / 3 + second)


def test_text_that_is_too_short_for_a_draft_teaches_nothing_and_is_not_judged() -> None:
    student = head("eagle3")
    tiny = cache([Example([1, 2], 1, "a", "0")], [Example([1, 2], 1, "a", "0")])
    done = train(student, TEACHER, tiny, RECIPE.model_copy(update={"tokens": 2}), lesson=lesson(student, some=tiny))
    assert (done.figures.tokens, done.figures.accepted) == (0, 1.0)


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_later_drafts_count_less_and_what_a_head_cannot_say_does_not_count() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.1, 0.1, 0.2]])
    rows, mass = renormalised(p)
    torch.testing.assert_close(mass, torch.tensor([1.0, 0.0, 0.4]))
    torch.testing.assert_close(rows[2], torch.tensor([0.25, 0.25, 0.5]))
    drafts = [torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 3)]
    at, loss = torch.tensor([0, 1, 3]), ForwardKL()
    first = (loss(rows[0], drafts[0][0]) + 0.4 * loss(rows[2], drafts[0][2])) / 1.4
    second = loss(rows[2], drafts[1][1])
    torch.testing.assert_close(weighted(drafts, rows, mass, at, loss), (first + 0.8 * second) / 1.8)


def test_cross_entropy_learns_the_text() -> None:
    student = head("medusa")
    recipe = RECIPE.model_copy(update={"losses": ("cross-entropy",)})
    one = lesson(student, recipe)
    read = one.read(one.batches[0])
    rows = point_mass(read.tokens, VOCABULARY, torch.float32)
    drafts = student(read.features, read.ids, read.places, one.steps)
    expected = weighted(drafts, rows, torch.ones(len(rows)), read.at, ForwardKL())
    torch.testing.assert_close(one.loss(student, one.batches[0], 0.0), expected)
