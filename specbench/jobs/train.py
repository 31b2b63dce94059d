"""The body of `specbench train draft`: from settings to a target, its text, a starting point, and a trained draft.

Knows the order of things and what is said of them; must not know how anything is learned or decoded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout
from rich.console import Console

from specbench.errors import UsageError
from specbench.jobs import train_record, training_progress
from specbench.jobs.output import say
from specbench.jobs.train_data import Source, Teaching, teaching
from specbench.jobs.train_start import Beginning, Begun
from specbench.replacing import clear_unfinished, replace_text
from specbench.show.records import Format, print_records
from specbench.training import card, checkpoint, processes
from specbench.training.boost import Missed
from specbench.training.curve import Trained
from specbench.training.distil import Kept, train
from specbench.training.learner import DivergedError
from specbench.training.pace import pace
from specbench.training.recipe import Recipe
from specbench.wording import clean_path

CHECKPOINTS = "checkpoints"
CURVE = "curve.csv"
LOCK = ".lock"


@dataclass(frozen=True)
class Draft:
    """What `specbench train draft` was asked for: the target's settings, a starting point, text, a recipe, a folder.

    hours: how long the training itself may take, from which its tokens follow; minutes: between two checkpoints.
    boosted: whether a draft beside earlier ones is fitted where they miss, or as they were.
    """

    settings: Mapping[str, Any]
    start: Beginning
    source: Source
    recipe: Recipe
    output: Path
    hours: float | None = None
    minutes: float = 5.0
    licence: str | None = None
    command: str = ""
    boosted: bool = True

    @property
    def identity(self) -> dict[str, Any]:
        """What a run that is gone on with must have in common with the one that was begun."""
        recipe = self.recipe.model_dump(mode="json")
        if self.hours is not None:
            recipe["tokens"] = None  # they follow from the speed of the machine, once
        return {
            "settings": {name: str(value) for name, value in self.settings.items()},
            "start": self.start.identity,
            "source": self.source.identity,
            "recipe": recipe,
            "hours": self.hours,
            "boosted": self.boosted,
        }


def start(asked: Draft, style: Format, quiet: bool) -> None:
    """Train a draft into its folder and print what it is worth; a folder that was begun is gone on with.

    Where several processes train, one per device, the first of them writes and speaks.
    """
    err = console(quiet)
    with locked(asked.output):
        with processes.first_before_others():
            record = train_record.of(asked.output, asked.identity)
            given = (asked.settings, asked.source, asked.recipe, asked.output, err, asked.start.check)
            found = teaching(*given, again=asked.hours is not None)
        run = Training(asked, found, record, err)
        done = run.train()
        run.finish(done)
    if processes.first():
        print_figures(done, asked.recipe, style)
        say(err, run.conclusion(done))


def trained(asked: Draft, given: Teaching, err: Console, earlier: Sequence[Any] = ()) -> tuple[Any, Trained]:
    """Train one of several drafts of a loaded target into its folder: the student, and what came of it.

    earlier: the drafts that will draft with it.
    """
    with locked(asked.output):
        run = Training(asked, given, train_record.of(asked.output, asked.identity), err, earlier)
        done = run.train()
        run.finish(done)
    return run.student, done


def console(quiet: bool) -> Console:
    """Where a user is told how things go: by one process alone."""
    return Console(stderr=True, quiet=quiet or not processes.first())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for these processes alone."""
    if not processes.first():
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
        clear_unfinished(folder)
    except Timeout:
        raise UsageError(f"{clean_path(folder)} is being written by another process: wait for it, or end it") from None
    except OSError as error:
        raise UsageError(f"cannot write to {clean_path(folder)}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@dataclass
class Training:
    """A training run in its folder."""

    asked: Draft
    given: Teaching
    record: train_record.Record
    err: Console
    earlier: Sequence[Any] = ()
    made: Begun = field(init=False)

    def train(self) -> Trained:
        folder, recipe = self.asked.output, self.asked.recipe
        going_on = checkpoint.newest(folder / CHECKPOINTS) is not None
        self.made = self.asked.start.begun(self.given, recipe, folder if going_on else None)
        say(self.err, [f"{'going on with' if going_on else 'draft:'} {self.made.words}: {self.made.shape}"])
        kept = Kept(folder / CHECKPOINTS, self.keep, self.asked.minutes * 60)
        data = (self.given.teacher, self.given.cache, self.timed(recipe))
        weights = Missed(self.earlier) if self.earlier and self.asked.boosted else None
        try:
            with training_progress.shown(self.err) as watch:
                return train(self.student, *data, kept, watch, weights, self.earlier, self.made.lesson)
        except DivergedError as error:
            raise DivergedError(
                f"{error}: {clean_path(folder)} has the best draft before that; try a smaller --rate, another --output"
            ) from error

    @property
    def student(self) -> Any:
        return self.made.student

    def timed(self, recipe: Recipe) -> Recipe:
        """The recipe with as many tokens as the hours allow, measured once and then kept."""
        if self.asked.hours is None:
            return recipe
        if self.record.tokens is None:
            found = pace(self.student, self.given.teacher, self.given.cache, recipe, self.made.lesson)
            self.record = replace(self.record, tokens=found.tokens(self.asked.hours * 3600, recipe.evaluations))
            if processes.first():
                train_record.write(self.asked.output, self.record)
            say(self.err, [f"{found.speed:.0f} tokens/s here: {self.record.tokens:,} tokens in {self.asked.hours:g} h"])
        return recipe.model_copy(update={"tokens": self.record.tokens})

    def finish(self, done: Trained) -> None:
        """The card with the whole curve."""
        if processes.first():
            self.write_card(done)

    def keep(self, student: Any, done: Trained) -> None:
        """The draft as a checkpoint that is ready to use, with its card."""
        self.made.save(student, self.asked.output)
        self.write_card(done)

    def write_card(self, done: Trained) -> None:
        """The model card, the learning curve by category, and the prompts that were held out, as far as the run is."""
        made = card.Provenance(
            target=self.given.target,
            source=self.given.source,
            start=self.made.words,
            shape=self.made.shape,
            parameters=sum(p.numel() for p in self.student.parameters()),
            data=self.given.data,
            licence=self.asked.licence or self.given.licence or "unknown",
            command=self.asked.command,
            **self.made.card,
        )
        text = card.card(made, self.asked.recipe, done.figures, done.by_category, done.progress.curve)
        replace_text(self.asked.output / "README.md", text)
        curve = pd.DataFrame(card.curve_rows(done.progress.curve))
        replace_text(self.asked.output / CURVE, curve.to_csv(index=False))
        for file, rows in self.given.held_out.items():
            replace_text(self.asked.output / file, jsonl(rows))

    def conclusion(self, done: Trained) -> Sequence[str]:
        """How it ended and what to do next."""
        folder, target = clean_path(self.asked.output), self.given.target
        coverage = self.given.coverage(self.student)
        reach = [] if coverage is None else [f"its vocabulary covers {coverage:.1%} of what the target says"]
        return [
            f"{done.ended}: the best draft is in {folder}",
            *reach,
            f"specbench {self.made.command} --target {target} --draft {folder}{unseen(Path(folder), self.given)}",
        ]


def unseen(folder: Path, given: Teaching) -> str:
    """The options that name the prompts of which a draft in this folder has learned nothing: others flatter it."""
    return "".join(f" --dataset jsonl:{folder / file}" for file in given.held_out)


def jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def print_figures(done: Trained, recipe: Recipe, style: Format) -> None:
    """What is accepted of the draft, by category and in all, on stdout."""
    categories = {**done.by_category, "all": done.figures} if len(done.by_category) > 1 else {"all": done.figures}
    rows = [{"category": name, **asdict(one)} for name, one in categories.items()]
    short = [
        {
            "category": row["category"],
            "tokens": row["tokens"],
            "alpha": f"{row['alpha']:.3f}",
            f"tokens per round at K {recipe.k}": f"{row['accepted']:.2f}",
        }
        for row in rows
    ]
    title = f"held-out text, temperature {recipe.temperature:g}, after {done.progress.tokens:,} learned tokens"
    print_records(rows, {title: short}, style)
