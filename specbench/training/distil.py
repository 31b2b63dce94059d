"""The training loop of a draft on its target's rows; it stops when acceptance no longer improves.

It also measures the training speed on this machine.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file
from torch import Tensor

from specbench.decoding.divergences import ForwardKL, divergence
from specbench.decoding.types import point_mass
from specbench.models.network.sampling import Sampling, known_alone
from specbench.training.cache import TokenCache
from specbench.training.evaluation import Judge, Progress, Trained
from specbench.training.heads import HeadLesson
from specbench.training.learner import (
    BEST,
    Batch,
    Batches,
    Learner,
    agreed,
    is_first,
    logits_of,
    newest_checkpoint,
    read_checkpoint,
)
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher, continued

TEXT = "cross-entropy"  # the loss without a teacher
Weights = Callable[[Batch, Tensor], Tensor]  # [n] weight of each learned token, from the teacher's rows [n, V]


@dataclass(frozen=True)
class Kept:
    """The storage of a run: `keep` stores the student at every improvement, with its figures;
    checkpoints go into `folder`, at a fixed interval in seconds."""

    folder: Path
    keep: Callable[[Any, "Trained"], None]
    every: float = 300.0


Watch = Callable[[Progress, Recipe], None]


@dataclass
class Run:
    """The training of `student` in place on the rows of `teacher`, in progress.

    earlier: drafts used together with it; it is then judged by the acceptance of all together.
    lesson: the loss and the evaluation of a head, instead of those of a network's rows along text.
    """

    student: Any
    teacher: Teacher
    cache: TokenCache
    recipe: Recipe
    kept: Kept | None = None
    watch: Watch = lambda progress, recipe: None
    weights: Weights | None = None
    earlier: Sequence[Any] = ()
    lesson: HeadLesson | None = None

    def __post_init__(self) -> None:
        cache, recipe = self.cache, self.recipe
        self.learner = Learner(self.student, recipe, self.teacher.device)
        accelerator = self.learner.accelerator
        self.batches = Batches(cache.train, recipe, accelerator.num_processes, accelerator.process_index)
        self.judge = self.lesson or Judge(self.teacher, cache, recipe, self.earlier)
        self.progress = Progress()
        self.result: Trained | None = None
        self.best: dict[str, Tensor] = {}

    def trained(self) -> Trained:
        """Train to the end; afterwards the student has the weights with the highest acceptance.

        With `kept` a killed run continues from its newest checkpoint. DivergedError for a non-finite loss or
        gradient, UsageError if a checkpoint cannot be written or read; earlier results stay.
        """
        self.restore()
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
        assert self.result is not None
        self.learner.student.load_state_dict(self.best)
        self.learner.student.eval().requires_grad_(False)
        return replace(self.result, ended=self.ended)

    def speed(self, more: Callable[[int], bool]) -> float:
        """Learned tokens per second over steps; `more` decides from the number done whether to continue."""
        began, before, steps = time.monotonic(), self.progress.tokens, 0
        while more(steps):
            self.step()
            steps += 1
        return (self.progress.tokens - before) / (time.monotonic() - began)

    @property
    def ended(self) -> str:
        """Why the run has ended; empty while it continues."""
        if self.progress.since >= self.recipe.patience:
            return f"no longer accepted in {self.recipe.patience} evaluations"
        return "all tokens learned" if self.progress.tokens >= self.recipe.tokens else ""

    @property
    def due(self) -> float:
        """The number of tokens at which the next evaluation is due."""
        return min(len(self.progress.curve) * self.recipe.tokens / self.recipe.evaluations, self.recipe.tokens)

    def step(self) -> None:
        done = self.progress.tokens / self.recipe.tokens
        first = self.progress.step * self.recipe.accumulation
        passes = [self.pass_of(number) for number in range(first, first + self.recipe.accumulation)]
        loss_of = self.lesson.loss if self.lesson is not None else self.loss
        mean = self.learner.step(passes, partial(loss_of, done=done), self.recipe.factor(done))
        self.progress.learned(mean, self.learner.total(sum(batch.tokens for batch in passes)))

    def loss(self, student: Any, batch: Batch, done: float) -> Tensor:
        """The loss of a network's rows along text."""
        name = self.recipe.loss(done)
        loss = ForwardKL() if name == TEXT else divergence(name, self.recipe.beta)
        if name == TEXT:
            p = point_mass(batch.following, self.teacher.width, torch.float32)
        else:
            p = self.teacher.rows(batch, Sampling(self.recipe.temperature or 1.0))
        with known_alone(student) as known:
            logits = logits_of(student, batch).float()
        rows = loss(p if known is None else p.index_select(-1, known), logits)
        if self.weights is None:
            return rows.mean()
        weights = self.weights(batch, p)
        return (rows * weights).sum() / weights.sum().clamp_min(1e-9)

    def pass_of(self, number: int) -> Batch:
        """The batch of a pass, in the text chosen by the recipe."""
        batch = self.batches(number)
        own = self.recipe.samples == "student" or (self.recipe.samples == "mixed" and number % 2 == 1)
        batch = continued(batch, self.learner.student, self.recipe, self.teacher.width, number) if own else batch
        return batch.to(self.teacher.device)

    def evaluate(self) -> None:
        """Add a point to the curve; keep the best weights."""
        student, progress = self.learner.student.eval(), self.progress
        figures, by_category = agreed(self.judge.figures(student))
        better = not progress.curve or figures.accepted > progress.best
        progress.add(figures, by_category)
        if better:
            self.best = {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}
            self.result = Trained(figures, by_category, progress)
            if self.kept is not None and is_first():
                self.kept.keep(student, self.result)

    def save(self) -> None:
        assert self.kept is not None
        assert self.result is not None
        result = asdict(self.result)
        stored = {**result.pop("progress"), "result": result}
        self.learner.save(self.kept.folder, self.progress.step, stored, self.best)

    def restore(self) -> None:
        """Continue from the newest checkpoint, if any."""
        if self.kept is None or (path := newest_checkpoint(self.kept.folder)) is None:
            return
        with read_checkpoint(path) as stored:
            self.result = TypeAdapter(Trained).validate_python({**stored.pop("result"), "progress": stored})
            self.progress, self.best = self.result.progress, load_file(path / BEST)
            self.learner.accelerator.load_state(str(path))


@dataclass(frozen=True)
class Pace:
    """The training speed of a draft on this machine: tokens per second, and seconds of an evaluation.

    again: tokens per second from the second epoch on, over `text` tokens: the teacher's states are then stored.
    """

    speed: float
    evaluation: float
    again: float
    text: int

    def tokens(self, seconds: float, evaluations: int) -> int:
        """The number of tokens learned in this many seconds, to two digits, at least one."""
        left = max(seconds - (evaluations + 1) * self.evaluation, 0.0)
        once = min(left, self.text / self.speed)
        learned = self.speed * once + self.again * (left - once)
        return agreed(max(int(float(f"{learned:.1e}")), 1))


def pace(
    student: Any,
    teacher: Teacher,
    cache: TokenCache,
    recipe: Recipe,
    lesson: HeadLesson | None = None,
    least: float = 8.0,
) -> Pace:
    """Train a copy of the student for `least` seconds, then discard it.

    The teacher stores nothing at first, whatever is on disk: an earlier run may have left only the first states.
    """
    run = Run(copy.deepcopy(student), replace(teacher, states=None), cache, recipe, lesson=lesson)
    run.step()  # first calls allocate
    run.evaluate()
    began = time.monotonic()
    run.evaluate()
    evaluated = time.monotonic()
    first, speed = run.progress.step, run.speed(lambda steps: time.monotonic() - evaluated < least or not steps)
    again = speed
    if teacher.states is not None:
        run.teacher, steps = teacher, run.progress.step - first
        for _ in range(2):  # the first time stores the states, or finds them
            run.progress.step = first
            again = run.speed(lambda done: done < steps)
    return Pace(speed, evaluated - began, again, int(cache.train.learned(recipe.prompts).sum()))
