"""The loop that trains a draft on the rows of its target, and stops when drafts are no longer accepted more often.

And how fast a draft learns on this machine.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from specbench.decoding.divergences import ForwardKL, divergence
from specbench.models.network.sampling import Sampling
from specbench.training import processes
from specbench.training.cache import TokenCache
from specbench.training.evaluation import Figures, Judge, Progress, Trained, chosen, sampled
from specbench.training.learner import Batch, Batches, Learner, newest_checkpoint, on_common_tokens, text_rows
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher, continued

TEXT = "cross-entropy"  # the loss that needs no teacher
Weights = Callable[[Batch, Tensor], Tensor]  # [n] how much each learned token counts, from the teacher's rows [n, V]


@dataclass(frozen=True)
class Kept:
    """Where a run is kept: `keep` stores the student whenever it is better than before,
    with what it is worth; checkpoints go into `folder`, one every so many seconds."""

    folder: Path
    keep: Callable[[Any, "Trained"], None]
    every: float = 300.0


Watch = Callable[[Progress, Recipe], None]


class Lesson(Protocol):
    """What is learned of a batch, and how that is judged."""

    def loss(self, student: Any, batch: Batch, done: float) -> Tensor:
        """The loss of a batch at a share of the run, from 0 to 1: a number that can be differentiated."""
        ...

    def figures(self, student: Any) -> tuple[Figures, dict[str, Figures]]:
        """What a student is worth on held-out text, of all and by category."""
        ...


def silent(progress: Progress, recipe: Recipe) -> None:
    """A `Watch` that shows nothing."""


def train(
    student: Any,
    teacher: Teacher,
    cache: TokenCache,
    recipe: Recipe,
    kept: Kept | None = None,
    watch: Watch = silent,
    weights: Weights | None = None,
    earlier: Sequence[Any] = (),
    lesson: Lesson | None = None,
) -> Trained:
    """Train `student` in place on the rows of `teacher`; afterwards it has the weights that were accepted most.

    earlier: drafts that will draft beside it; then it is judged by what is accepted of all of them together.
    lesson: what is learned and judged, where that is not the rows of a network along text. With `kept` a run
    that was killed goes on from its newest checkpoint. Raises DivergedError where a loss or gradient is no
    number, and UsageError where a checkpoint cannot be written or read; what was kept before stays as it is.
    """
    run = Run(student, teacher, cache, recipe, kept, watch, weights, earlier, lesson)
    run.restore()
    for _ in run.steps():
        pass
    return run.finished()


class Run:
    """A training run while it goes on."""

    def __init__(
        self,
        student: Any,
        teacher: Teacher,
        cache: TokenCache,
        recipe: Recipe,
        kept: Kept | None,
        watch: Watch,
        weights: Weights | None = None,
        earlier: Sequence[Any] = (),
        lesson: Lesson | None = None,
    ) -> None:
        self.teacher, self.recipe, self.kept, self.watch, self.weights = teacher, recipe, kept, watch, weights
        self.learner = Learner(student, recipe, teacher.device)
        self.batches = Batches(cache.train, recipe, self.learner.processes, self.learner.process)
        self.lesson = lesson
        self.judge = lesson or Judge(
            teacher, chosen(cache.held_out, recipe.held_out), recipe, sampled(cache, recipe), earlier
        )
        self.progress = Progress()
        self.result: Trained | None = None
        self.best: dict[str, Tensor] = {}

    def steps(self) -> Iterator[Progress]:
        """Step by step to the end, with evaluations and checkpoints between them."""
        began, stored = time.monotonic() - self.progress.seconds, time.monotonic()
        if not self.progress.curve:
            self.evaluate()
        while not self.ended:
            self.step()
            self.progress.seconds = time.monotonic() - began
            if self.progress.tokens >= self.due:
                self.evaluate()
            if self.kept is not None and (time.monotonic() - stored >= self.kept.every or self.ended):
                self.save()
                stored = time.monotonic()
            self.watch(self.progress, self.recipe)
            yield self.progress

    def speed(self, more: Callable[[int], bool]) -> float:
        """Learned tokens per second over steps: as long as there are to be more than those that are done."""
        began, before, steps = time.monotonic(), self.progress.tokens, 0
        while more(steps):
            self.step()
            steps += 1
        return (self.progress.tokens - before) / (time.monotonic() - began)

    @property
    def ended(self) -> str:
        """Why the run is at its end; empty while it goes on."""
        if self.progress.since >= self.recipe.patience:
            return f"no longer accepted in {self.recipe.patience} evaluations"
        return "all tokens learned" if self.progress.tokens >= self.recipe.tokens else ""

    @property
    def due(self) -> float:
        """After how many tokens the next evaluation comes."""
        return min(len(self.progress.curve) * self.recipe.tokens / self.recipe.evaluations, self.recipe.tokens)

    def step(self) -> None:
        done = self.progress.tokens / self.recipe.tokens
        first = self.progress.step * self.recipe.accumulation
        passes = [self.pass_of(number) for number in range(first, first + self.recipe.accumulation)]
        loss_of = self.lesson.loss if self.lesson is not None else self.loss
        mean = self.learner.step(passes, partial(loss_of, done=done), self.recipe.factor(done))
        self.progress.learned(mean, self.learner.total(sum(batch.tokens for batch in passes)))

    def loss(self, student: Any, batch: Batch, done: float) -> Tensor:
        """That of the rows of a network along text."""
        name = self.recipe.loss(done)
        loss = ForwardKL() if name == TEXT else divergence(name, self.recipe.beta)
        p = self.rows(batch, name)
        rows = loss(*on_common_tokens(p, student, batch))
        if self.weights is None:
            return rows.mean()
        weights = self.weights(batch, p)
        return (rows * weights).sum() / weights.sum().clamp_min(1e-9)

    def pass_of(self, number: int) -> Batch:
        """The batch of a pass, in the text that the recipe asks for."""
        batch = self.batches(number)
        own = self.recipe.samples == "student" or (self.recipe.samples == "mixed" and number % 2 == 1)
        batch = continued(batch, self.learner.student, self.recipe, self.teacher.width, number) if own else batch
        return batch.to(self.teacher.device)

    def rows(self, batch: Batch, loss: str) -> Tensor:
        """[n, V] what is learned: the teacher's distributions, or the text itself."""
        return text_rows(batch, self.teacher.width) if loss == TEXT else self.teacher.rows(batch, self.law)

    @property
    def law(self) -> Sampling:
        """The teacher's distribution that is learned."""
        return Sampling(self.recipe.temperature or 1.0)

    def evaluate(self) -> None:
        """A point on the curve; the best weights are kept."""
        student, progress = self.learner.student.eval(), self.progress
        figures, by_category = processes.agreed(self.judge.figures(student))
        better = not progress.curve or figures.accepted > progress.best
        progress.add(figures, by_category)
        if better:
            self.best = {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}
            self.result = Trained(figures, by_category, progress, "")
            if self.kept is not None and self.learner.first:
                self.kept.keep(student, self.result)

    def finished(self) -> Trained:
        """The student with its best weights."""
        assert self.result is not None
        self.learner.student.load_state_dict(self.best)
        self.learner.student.eval().requires_grad_(False)
        return replace(self.result, progress=self.progress, ended=self.ended)

    def save(self) -> None:
        assert self.kept is not None
        assert self.result is not None
        categories = {name: asdict(one) for name, one in self.result.by_category.items()}
        result = {"figures": asdict(self.result.figures), "by_category": categories}
        stored = {**asdict(self.progress), "result": result}
        self.learner.save(self.kept.folder, self.progress.step, stored, self.best)

    def restore(self) -> None:
        """Go on from the newest checkpoint, where there is one."""
        if self.kept is None or (path := newest_checkpoint(self.kept.folder)) is None:
            return
        self.progress, self.result, self.best = self.learner.load(path, read_back)


def read_back(stored: dict[str, Any], best: dict[str, Tensor]) -> tuple[Progress, Trained, dict[str, Tensor]]:
    """How far a run was, what its best weights are worth, and these."""
    found = stored.pop("result")
    progress = Progress.read(stored)
    categories = {name: Figures(**one) for name, one in found["by_category"].items()}
    return progress, Trained(Figures(**found["figures"]), categories, progress, ""), best


@dataclass(frozen=True)
class Pace:
    """How fast a draft learns on this machine: tokens per second, and seconds of an evaluation.

    again: tokens per second from the second time on that the text is learned, of
    which there is as much as `text` says: the teacher's states are kept then.
    """

    speed: float
    evaluation: float
    again: float
    text: int

    def tokens(self, seconds: float, evaluations: int) -> int:
        """How many tokens are learned in so many seconds, to two digits, at least one."""
        left = max(seconds - (evaluations + 1) * self.evaluation, 0.0)
        once = min(left, self.text / self.speed)
        learned = self.speed * once + self.again * (left - once)
        return processes.agreed(max(int(float(f"{learned:.1e}")), 1))


def pace(
    student: Any,
    teacher: Teacher,
    cache: TokenCache,
    recipe: Recipe,
    lesson: Lesson | None = None,
    least: float = 8.0,
) -> Pace:
    """Learn for `least` seconds with a copy of the student that is then forgotten.

    The teacher keeps nothing at first, whatever is on disk: an earlier run may have left the first states and no more.
    """
    run = Run(copy.deepcopy(student), replace(teacher, states=None), cache, recipe, None, silent, lesson=lesson)
    run.step()  # first calls allocate
    run.evaluate()
    began = time.monotonic()
    run.evaluate()
    evaluated = time.monotonic()
    first, speed = run.progress.step, run.speed(lambda steps: time.monotonic() - evaluated < least or not steps)
    again = speed
    if teacher.states is not None:
        run.teacher, steps = teacher, run.progress.step - first
        for _ in range(2):  # the first time keeps the states, or finds them
            run.progress.step = first
            again = run.speed(lambda done: done < steps)
    return Pace(speed, evaluated - began, again, int(cache.train.learned(recipe.prompts).sum()))
