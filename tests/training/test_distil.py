"""Training: drafts are accepted more often, a killed run goes on to the same weights, failures leave what was kept."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.divergences import NAMES
from specbench.errors import UsageError
from specbench.models.network.sampling import Sampling, known_alone, reduce_head
from specbench.training.cache import Example
from specbench.training.distil import Kept, Pace, Run, pace
from specbench.training.evaluation import Figures, Progress, Trained
from specbench.training.learner import (
    DivergedError,
    batch_of,
    logits_of,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from specbench.training.recipe import Recipe
from specbench.training.teacher import States, Teacher, continued, shortened
from tests.support.learning import VOCABULARY, cache, examples, llama, train

TEACHER = llama(2)
CACHE = cache(examples(40), examples(8, seed=9))
SHORT = Recipe(tokens=600, rows=4, rate=5e-3, evaluations=4, patience=9)
State = dict[str, torch.Tensor]


def same(one: Any, other: Any) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("losses", [("forward-kl", "hybrid"), ("jsd",), ("overlap",)])
def test_a_trained_draft_is_accepted_more_often(losses: tuple[str, ...]) -> None:
    student = llama(2, seed=1)
    recipe = SHORT.model_copy(update={"losses": losses, "temperature": 1.0, "tokens": 2400})
    done = train(student, Teacher(TEACHER), CACHE, recipe)
    first, *_ = done.progress.curve
    assert done.figures.alpha > first.alpha + 0.02
    assert done.figures.accepted == max(point.accepted for point in done.progress.curve)
    assert len(done.progress.curve) == 5
    assert done.progress.tokens >= 2400
    assert done.ended == "all tokens learned"


@pytest.mark.parametrize("losses", [("forward-kl", "hybrid"), ("reverse-kl", "jsd"), ("tv", "overlap")])
def test_a_draft_that_knows_some_tokens_learns_them(losses: tuple[str, ...]) -> None:
    known = [number for number in range(VOCABULARY) if number % 4]
    student = reduce_head(llama(2, seed=1), known)
    recipe = SHORT.model_copy(update={"losses": losses, "temperature": 1.0, "samples": "mixed"})
    done = train(student, Teacher(TEACHER), CACHE, recipe)
    first, *_ = done.progress.curve
    assert done.figures.alpha > first.alpha
    assert student.get_output_embeddings().weight.shape[0] == len(known)
    assert all(weight.isfinite().all() for weight in student.parameters())


def test_the_student_ends_with_its_best_weights() -> None:
    kept: list[State] = []
    student = llama(1, seed=1)

    best = Kept(Path("unused"), lambda network, done: kept.append(copy.deepcopy(network.state_dict())), every=1e9)
    run = Run(student, Teacher(TEACHER), CACHE, SHORT, best)
    run.save = lambda: None  # type: ignore[method-assign]
    run.trained()
    assert all(torch.equal(student.state_dict()[name], kept[-1][name]) for name in kept[-1])


def test_a_run_ends_when_drafts_are_no_longer_accepted_more_often() -> None:
    student = copy.deepcopy(TEACHER)  # it cannot become better
    done = train(student, Teacher(TEACHER), CACHE, SHORT.model_copy(update={"patience": 2, "rate": 1e-9}))
    assert done.ended == "no longer accepted in 2 evaluations"
    assert done.progress.tokens < SHORT.tokens


def test_what_was_good_before_may_lose_at_first() -> None:
    progress = Progress()
    for tokens, accepted in ((0, 1.3), (10, 1.1), (20, 1.2), (30, 1.1), (40, 1.2)):
        progress.tokens = tokens
        progress.add(Figures(0.5, accepted, 9), {})
    assert progress.since == 2  # after the 1.2 at 20 tokens, not after the 1.3 before any step
    assert progress.best == 1.3


def test_a_draft_that_knows_some_tokens_learns_those() -> None:
    """Its loss and gradient are those of the whole rows, whose other tokens it cannot have."""
    recipe = SHORT.model_copy(update={"tokens": 2400, "temperature": 1.0, "losses": ("hybrid",)})
    student = reduce_head(llama(2, seed=1), range(3, 20))
    done = train(student, Teacher(TEACHER), CACHE, recipe)
    assert done.figures.alpha > done.progress.curve[0].alpha + 0.01
    head = student.get_output_embeddings()
    batch = batch_of(examples(3), 16)
    whole = logits_of(student, batch)
    with known_alone(student) as known:
        assert known is not None
        assert known.tolist() == list(range(3, 20))
        assert torch.equal(logits_of(student, batch), whole.index_select(-1, known))
    assert not head.alone
    p = Teacher(TEACHER).rows(batch, Sampling(1.0))
    for loss in (NAMES["overlap"], NAMES["tv"]):
        outside = p.index_fill(-1, known, 0.0).sum(-1) / 2 if loss is NAMES["tv"] else 0.0
        narrow = loss(p.index_select(-1, known), whole.index_select(-1, known))
        torch.testing.assert_close(narrow + outside, loss(p, whole))


def test_cross_entropy_asks_nothing_of_the_teacher() -> None:
    """Its step is that of the mean −log q of the learned tokens."""
    recipe = SHORT.model_copy(update={"losses": ("cross-entropy",), "tokens": 30, "patience": 9})
    student, other = llama(1, seed=1), llama(1, seed=1)
    run, same_run = (Run(one, Teacher(TEACHER), CACHE, recipe) for one in (student, other))
    batch = run.pass_of(0)
    run.step()

    def loss_of(network: Any, some: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits_of(network, some), some.following)

    same_run.learner.step([batch], loss_of, recipe.factor(0.0))
    assert all(
        torch.allclose(student.state_dict()[name], weight, atol=1e-7) for name, weight in other.state_dict().items()
    )


class KilledError(Exception):
    pass


@pytest.mark.parametrize("kill", [pytest.param(1, marks=pytest.mark.slow), 6])
@pytest.mark.parametrize("samples", ["teacher", "mixed"])
def test_a_killed_run_goes_on_to_the_same_weights(kill: int, samples: str, tmp_path: Path) -> None:
    recipe = SHORT.model_copy(update={"samples": samples, "accumulation": 2})

    def kept(name: str) -> Kept:
        return Kept(tmp_path / name, lambda network, done: None, every=0.0)

    whole, killed, again = llama(1, seed=1), llama(1, seed=1), llama(1, seed=2)
    done = train(whole, Teacher(TEACHER), CACHE, recipe, kept("whole"))

    def watch(progress: Progress, _: Recipe) -> None:
        if progress.step == kill:
            raise KilledError

    with pytest.raises(KilledError):
        train(killed, Teacher(TEACHER), CACHE, recipe, kept("killed"), watch)
    resumed = train(again, Teacher(TEACHER), CACHE, recipe, kept("killed"))
    assert same(again, whole)
    assert resumed.figures == done.figures
    assert [(p.tokens, p.loss, p.alpha) for p in resumed.progress.curve] == [
        (p.tokens, p.loss, p.alpha) for p in done.progress.curve
    ]


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    kept = Kept(tmp_path, lambda network, done: None)
    first, second = llama(1, seed=1), llama(1, seed=2)
    train(first, Teacher(TEACHER), CACHE, SHORT, kept)
    seen: list[int] = []
    train(second, Teacher(TEACHER), CACHE, SHORT, kept, lambda progress, _: seen.append(progress.step))
    assert same(second, first)
    assert not seen


def test_a_loss_that_is_no_number_changes_nothing(tmp_path: Path) -> None:
    student, stored = llama(1, seed=1), []
    broken = Recipe(tokens=600, rows=4, rate=5e-3, evaluations=1)

    def weights(batch: Any, p: torch.Tensor) -> torch.Tensor:
        return torch.full((batch.tokens,), float("nan") if stored else 1.0)

    def keep(network: Any, done: Trained) -> None:
        stored.append(copy.deepcopy(network.state_dict()))

    with pytest.raises(DivergedError, match="the loss is nan"):
        train(student, Teacher(TEACHER), CACHE, broken, Kept(tmp_path, keep), weights=weights)
    assert all(torch.equal(student.state_dict()[name], stored[-1][name]) for name in stored[-1])


def test_weights_say_which_tokens_are_learned() -> None:
    """With weight on the sequences of one category alone, the other might as well not be there."""
    only = SHORT.model_copy(update={"rows": 1, "tokens": 40, "decay": 0.0})

    def of_a(batch: Any, p: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0 if e.category == "a" else 0.0 for e in batch.examples]).repeat_interleave(
            batch.learned.sum(1)
        )

    text = cache(examples(4, categories=("b",)), examples(2, seed=9))
    student, untouched = llama(1, seed=1), llama(1, seed=1)
    train(student, Teacher(TEACHER), text, only, weights=of_a)
    assert same(student, untouched)


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, {"step": 3}, lambda place: (place / "weights").touch())

    def full(place: Path) -> None:
        (place / "weights").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"No space left on device.*step-000000003.* is whole"):
        write_checkpoint(tmp_path, 4, {"step": 4}, full)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]
    assert newest_checkpoint(tmp_path) == tmp_path / "step-000000003"


def test_a_new_checkpoint_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for step in (3, 12):
        write_checkpoint(tmp_path, step, {"step": step}, lambda place: None)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000012"]
    (tmp_path / "step-000000013").mkdir()  # one without its progress is none
    assert newest_checkpoint(tmp_path) == tmp_path / "step-000000012"


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    kept = Kept(tmp_path, lambda network, done: None)
    few = SHORT.model_copy(update={"tokens": 60, "evaluations": 1})
    train(llama(1, seed=1), Teacher(TEACHER), CACHE, few, kept)
    (path,) = tmp_path.glob("step-*/progress.json")
    for text in ("", "[]", "{", '{"curve": 3}'):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"cannot continue from .*remove it"):
            train(llama(1, seed=1), Teacher(TEACHER), CACHE, few, kept)


def test_a_device_in_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, {"step": 3}, lambda place: (place / "best").symlink_to("/dev/zero"))
    place = tmp_path / "step-000000003"
    with pytest.raises(UsageError, match=r"cannot continue from .*a pipe or a device"), read_checkpoint(place):
        (place / "best").open("rb").read(9)


def test_a_student_continues_the_prompts_itself() -> None:
    student, batch = llama(1, seed=1), batch_of(examples(5), 16)
    own = continued(batch, student, Recipe(), VOCABULARY, 3)
    for before, after in zip(batch.examples, own.examples, strict=True):
        prompt = shortened(before, 256)
        assert list(after.ids[: after.start]) == list(prompt.ids[: prompt.start])
        assert after.start == prompt.start
    assert torch.equal(own.ids, continued(batch, student, Recipe(), VOCABULARY, 3).ids)
    assert not torch.equal(own.ids, continued(batch, student, Recipe(), VOCABULARY, 4).ids)


def test_a_long_prompt_leaves_half_of_the_length() -> None:
    found = shortened(Example(list(range(100)), 90, "a", "x"), 16)
    assert list(found.ids) == list(range(82, 98))
    assert found.start == 8


def test_the_pace_is_measured_with_a_copy() -> None:
    student, before = llama(1, seed=1), llama(1, seed=1)
    found = pace(student, Teacher(TEACHER), CACHE, SHORT, least=0.0)
    assert found.speed >= 0
    assert found.evaluation > 0
    assert same(student, before)


def test_the_pace_of_the_first_pass_is_that_of_a_teacher_that_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run left on disk would make it look faster than it is for the rest of the text."""
    kept, seen = States.__new__(States), list[States | None]()

    def step(run: Run) -> None:
        seen.append(run.teacher.states)
        run.progress.learned(1.0, 8)

    monkeypatch.setattr(Run, "step", step)
    pace(llama(1, seed=1), Teacher(TEACHER, kept), CACHE, SHORT, least=0.0)
    assert seen == [None, None, kept, kept]  # once to allocate, once timed; once to keep them, once timed


@pytest.mark.parametrize(("seconds", "tokens"), [(60.0, 5500), (125.0, 12000), (4.0, 1)])
def test_hours_become_tokens_to_two_digits(seconds: float, tokens: int) -> None:
    """After four evaluations and the one before training, of a second each."""
    assert Pace(100.0, 1.0, 100.0, 1000).tokens(seconds, 4) == tokens


def test_text_that_is_learned_again_is_learned_faster() -> None:
    found = Pace(100.0, 1.0, 400.0, 2000)
    assert found.tokens(15.0, 4) == 1000
    assert found.tokens(45.0, 4) == 2000 + 400 * 20
