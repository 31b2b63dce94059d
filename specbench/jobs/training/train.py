"""`specbench train draft`, `head` and `boost`: from settings to trained drafts in their folders.

A folder holds the draft, its card and curve, checkpoints, and a record of the original command, so that
repeating the command continues the training.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from specbench.errors import UsageError
from specbench.files import read_whole, replace_text
from specbench.jobs.output import say
from specbench.jobs.training.data import CACHE, Source, Teaching, teaching
from specbench.jobs.training.start import Beginning, Begun, parameters_of
from specbench.show.table import print_records
from specbench.show.text import Format
from specbench.training.cache import acquired
from specbench.training.distil import Kept, Run, pace
from specbench.training.evaluation import (
    Judge,
    Point,
    Provenance,
    Trained,
    curve_rows,
    model_card,
)
from specbench.training.evaluation import Progress as Learning
from specbench.training.learner import DivergedError, is_first, missed, newest_checkpoint, process_state
from specbench.training.recipe import Recipe
from specbench.wording import clean, clean_path, first_line

CHECKPOINTS, CURVE, RECORD = "checkpoints", "curve.csv", "training.json"
MOST = 1 << 20  # bytes of a record
NAMES = ("draft", "second", "third")  # of the drafts in the method boosted-merge
PLAIN = 30.0  # seconds between two lines without a terminal


@dataclass(frozen=True)
class Draft:
    """A requested training: the target's settings, a starting point, text, a recipe, a folder.

    hours: the time limit of training, which sets the number of tokens; minutes: between checkpoints. boosted:
    whether a draft added to earlier ones is fitted where they miss, or like them.
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
        """The values that must match to continue a run."""
        recipe = self.recipe.model_dump(mode="json")
        if self.hours is not None:
            recipe["tokens"] = None  # set once from the speed of the machine
        return {
            "settings": {name: str(value) for name, value in self.settings.items()},
            "start": self.start.identity,
            "source": self.source.identity,
            "recipe": recipe,
            "hours": self.hours,
            "boosted": self.boosted,
        }


def start(job: Draft, style: Format, quiet: bool) -> None:
    """Train a draft into its folder and print its evaluation; continue if the folder has a started training.

    If several processes train, one per device, the first of them writes and prints.
    """
    err = console(quiet)
    with locked(job.output):
        given, tokens = ready(job, job.identity, err, again=job.hours is not None)
        run = Training(job, given, tokens, err)
        done = run.train()
    if is_first():
        rows = [{"category": name, **asdict(one)} for name, one in done.categories.items()]
        title = f"held-out text, temperature {job.recipe.temperature:g}, after {done.progress.tokens:,} learned tokens"
        print_worth(rows, ("category", "tokens"), title, job.recipe, style)
        say(err, run.conclusion(done))


def boost(job: Draft, drafts: int, style: Format, quiet: bool) -> None:
    """Train several drafts into folders 1, 2, … of the output and print their acceptance, alone and together."""
    err = console(quiet)
    job = replace(job, source=replace(job.source, cache=job.source.cache or job.output / CACHE))
    rows, earlier = list[dict[str, Any]](), list[Any]()
    with locked(job.output):
        given, _ = ready(job, {**job.identity, "drafts": drafts}, err, again=True)
        for number in range(1, drafts + 1):
            say(err, [f"draft {number}:"])
            recipe = job.recipe.model_copy(update={"seed": job.recipe.seed + number - 1})
            part = replace(job, output=job.output / str(number), recipe=recipe)
            student, _ = trained(part, given, err, tuple(earlier))
            rows.append({"draft": number, **worth(student, given, job.recipe, earlier)})
            earlier.append(student)
    if is_first():
        both = "tokens that it or an earlier draft likes best"
        print_worth(rows, ("draft",), "held-out text", job.recipe, style, {both: "together"})
        folder = Path(clean_path(job.output))
        models = [f"--model {name}={folder / str(n)}" for n, name in enumerate(NAMES[1:], 2)]
        line = f"specbench run --target {job.settings.get('target', 'demo')} --draft {folder / '1'} {' '.join(models)}"
        line += f" --method boosted-merge{unseen(folder / '1', given)}"
        if drafts != len(NAMES):
            line = f"boosted-merge names {len(NAMES)} drafts: for {drafts}, copy configs/methods/boosted-merge.yaml"
        say(err, [line])


def worth(student: Any, given: Teaching, recipe: Recipe, earlier: Sequence[Any]) -> dict[str, Any]:
    """Acceptance of a draft on the held-out text, alone and (greedy) together with the earlier drafts."""
    greedy = recipe.model_copy(update={"temperature": 0.0})
    alone, _ = Judge(given.teacher, given.cache, recipe).figures(student)
    together, _ = Judge(given.teacher, given.cache, greedy, earlier).figures(student)
    return {**asdict(alone), "together": together.alpha}


def print_worth(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], title: str, recipe: Recipe, style: Format,
    shares: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Print the acceptance of drafts on stdout; shares: further columns, by their labels."""
    short = [
        {
            **{key: row[key] for key in keys},
            "alpha": f"{row['alpha']:.3f}",
            f"tokens per round at K {recipe.k}": f"{row['accepted']:.2f}",
            **{label: f"{row[name]:.1%}" for label, name in (shares or {}).items()},
        }
        for row in rows
    ]
    print_records(rows, {title: short}, style)


def console(quiet: bool) -> Console:
    """The console for progress, on one process only."""
    return Console(stderr=True, quiet=quiet or not is_first())


def ready(job: Draft, identity: Mapping[str, Any], err: Console, again: bool) -> tuple[Teaching, int | None]:
    """The teacher with its text, and the result of `record_of`, which checks the folder before any reading."""
    with process_state().main_process_first():
        tokens = record_of(job.output, identity)
        given = (job.settings, job.source, job.recipe, job.output, err, job.start.check)
        return teaching(*given, again=again), tokens


def trained(job: Draft, given: Teaching, err: Console, earlier: Sequence[Any] = ()) -> tuple[Any, Trained]:
    """Train a draft of a loaded target to be combined with earlier ones; the student and its results."""
    with locked(job.output):
        run = Training(job, given, record_of(job.output, job.identity), err, earlier)
        return run.student, run.train()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for these processes."""
    if not is_first():
        yield
        return
    try:
        lock = acquired(folder, str(clean_path(folder)))
    except OSError as error:
        raise UsageError(f"cannot write to {clean_path(folder)}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@dataclass
class Training:
    """A training run in its folder. tokens: the number to learn, if measured and not given."""

    job: Draft
    given: Teaching
    tokens: int | None
    err: Console
    earlier: Sequence[Any] = ()
    made: Begun = field(init=False)

    def __post_init__(self) -> None:
        folder = self.job.output
        going_on = newest_checkpoint(folder / CHECKPOINTS) is not None
        self.made = self.job.start.begun(self.given, self.job.recipe, folder if going_on else None)
        say(self.err, [f"{'continuing' if going_on else 'draft:'} {self.made.words}: {self.made.shape}"])

    @property
    def student(self) -> Any:
        return self.made.student

    def train(self) -> Trained:
        """Train to the end; leaves the best draft in the folder, with a card and the whole curve."""
        kept = Kept(self.job.output / CHECKPOINTS, self.keep, self.job.minutes * 60)
        data = (self.given.teacher, self.given.cache, self.timed())
        weights = partial(missed, self.earlier) if self.earlier and self.job.boosted else None
        try:
            with shown(self.err) as watch:
                done = Run(self.student, *data, kept, watch, weights, self.earlier, self.made.lesson).trained()
        except DivergedError as error:
            raise DivergedError(
                f"{error}: {clean_path(self.job.output)} has the best draft before that; try a smaller --rate, "
                "another --output"
            ) from error
        if is_first():
            self.write_card(done)
        return done

    def timed(self) -> Recipe:
        """The recipe with as many tokens as the hours allow, measured once and then kept."""
        recipe, hours = self.job.recipe, self.job.hours
        if hours is None:
            return recipe
        if self.tokens is None:
            found = pace(self.student, self.given.teacher, self.given.cache, recipe, self.made.lesson)
            self.tokens = found.tokens(hours * 3600, recipe.evaluations)
            if is_first():
                write_record(self.job.output, self.job.identity, self.tokens)
            say(self.err, [f"{found.speed:.0f} tokens/s here: {self.tokens:,} tokens in {hours:g} h"])
        return recipe.model_copy(update={"tokens": self.tokens})

    def keep(self, student: Any, done: Trained) -> None:
        """Save the draft as a ready-to-use checkpoint, with its card."""
        self.made.save(student, self.job.output)
        self.write_card(done)

    def write_card(self, done: Trained) -> None:
        """Write the model card, the learning curve by category, and the held-out prompts, up to the current state."""
        made = Provenance(
            target=self.given.target,
            source=self.given.source,
            start=self.made.words,
            shape=self.made.shape,
            parameters=parameters_of(self.student),
            data=self.given.data,
            licence=self.job.licence or self.given.licence or "unknown",
            command=self.job.command,
            **self.made.card,
        )
        text = model_card(made, self.job.recipe, done)
        replace_text(self.job.output / "README.md", text)
        curve = pd.DataFrame(curve_rows(done.progress.curve))
        replace_text(self.job.output / CURVE, curve.to_csv(index=False))
        for file, rows in self.given.held_out.items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            replace_text(self.job.output / file, "".join(lines))

    def conclusion(self, done: Trained) -> Sequence[str]:
        folder, target = clean_path(self.job.output), self.given.target
        coverage = self.given.coverage(self.student, self.job.recipe)
        reach = [] if coverage is None else [f"its vocabulary covers {coverage:.1%} of the target's tokens"]
        return [
            f"{done.ended}: the best draft is in {folder}",
            *reach,
            f"specbench {self.made.command} --target {target} --draft {folder}{unseen(Path(folder), self.given)}",
        ]


def unseen(folder: Path, given: Teaching) -> str:
    """The options that name this folder's held-out prompts: on other prompts α is biased upwards."""
    return "".join(f" --dataset jsonl:{folder / file}" for file in given.held_out)


def record_of(folder: Path, identity: Mapping[str, Any]) -> int | None:
    """The measured number of tokens in the record of a folder, if any; a new folder is given a record.

    UsageError if it is for another training or unreadable, or the folder has unrelated files.
    """
    files = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if not (folder / RECORD).exists():
        if files:
            raise UsageError(
                f"{clean_path(folder)} holds other files ({clean(files[0])} …): a draft needs its own --output"
            )
        write_record(folder, identity)
        return None
    # a continued run's folder is written to, and links may lead anywhere
    if link := next((inner for inner in folder.rglob("*") if inner.is_symlink()), None):
        raise UsageError(f"{clean_path(link)} is a link: put the file or the folder itself there")
    begun, tokens = read_record(folder / RECORD)
    if (different := next(differences(begun, json.loads(json.dumps(identity, default=str))), None)) is None:
        return tokens
    if not {*files} - {RECORD, CACHE}:  # nothing was learned yet, and cached text checks its own source
        write_record(folder, identity)
        return None
    name, there, here = different
    raise UsageError(
        f"{clean_path(folder)} was begun with {clean(name)} {clean(there)}, not {clean(here)}: give the same to "
        "continue, or another --output"
    )


def read_record(file: Path) -> tuple[dict[str, Any], int | None]:
    try:
        found = json.loads(read_whole(file, MOST))
        return dict(found["identity"]), found["tokens"] if found["tokens"] is None else int(found["tokens"])
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(file)}: {error.strerror or first_line(error)}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{clean_path(file)} is damaged ({first_line(error)}): remove its folder, or give another --output"
        ) from error


def write_record(folder: Path, identity: Mapping[str, Any], tokens: int | None = None) -> None:
    text = json.dumps({"identity": identity, "tokens": tokens}, indent=1, default=str)
    replace_text(folder / RECORD, text + "\n")


def differences(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The differences of two records: the name of the value, and both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from differences(there.get(key), here.get(key), key)
    elif there != here:
        yield name, there, here


class Shown:
    """Draw or print the progress of training; every evaluation has its own line."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self.console, self.bar, self.task = console, bar, bar.add_task("training", total=None)
        self.seen, self.due = 0, time.monotonic() + PLAIN
        self.began: tuple[float, int] | None = None

    def __call__(self, progress: Learning, recipe: Recipe) -> None:
        now = time.monotonic()
        self.began = self.began or (now, progress.tokens)
        line = f"{state(progress)}{speed(progress, recipe, now - self.began[0], self.began[1])}"
        self.bar.update(self.task, completed=progress.tokens, total=recipe.tokens, description=line)
        if len(progress.curve) > self.seen:
            self.seen, line = len(progress.curve), evaluated(progress.curve[-1], recipe)
        elif not self.bar.disable or now < self.due:
            return
        self.due = now + PLAIN
        say(self.console, [line])


def speed(progress: Learning, recipe: Recipe, seconds: float, before: int) -> str:
    """Tokens per second since this process began, and the remaining minutes at that speed."""
    learned = progress.tokens - before
    if learned <= 0 or seconds <= 0:
        return ""
    left = (recipe.tokens - progress.tokens) * seconds / learned / 60
    return f", {learned / seconds:.0f} tokens/s, about {max(left, 0):.0f} min left"


def state(progress: Learning) -> str:
    """The loss, and the last held-out evaluation."""
    loss = "" if progress.loss is None else f"loss {progress.loss:.3f}, "
    last = progress.curve[-1]
    return f"{loss}α {last.alpha:.3f}, {last.accepted:.2f} tokens per round"


def evaluated(point: Point, recipe: Recipe) -> str:
    loss = "before any training" if point.loss is None else f"loss {point.loss:.3f}"
    return (
        f"{point.tokens:,} tokens ({point.tokens / recipe.tokens:.0%}): {loss}, held out α {point.alpha:.3f}, "
        f"{point.accepted:.2f} tokens per round at K {recipe.k}"
    )


@contextmanager
def shown(console: Console) -> Iterator[Shown]:
    """A `Shown` for a console, drawn on a terminal."""
    hidden = not console.is_terminal or console.quiet
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (text, BarColumn(bar_width=16), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield Shown(console, bar)
