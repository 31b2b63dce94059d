"""Progress of a run on stderr: a live panel on a terminal, plain lines elsewhere, nothing if quiet.

It is drawn between the turns, never during a timed decode.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Timer

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from specbench import metrics
from specbench.backends.base import Backend, Held
from specbench.backends.engines.arms import ENGINES
from specbench.jobs.output import say
from specbench.measure.fit import fit_of, refuse_too_large
from specbench.results import machine, noise, statistics
from specbench.results.cells import Cell, Observer, Samples
from specbench.results.documents import LOSSY, failed_audits, fault_of
from specbench.results.samples import Sample
from specbench.show.fitting import sentence
from specbench.spec import CHOOSING, RunSpec, drafted_by
from specbench.wording import clean, gigabytes, number_in, rows_said, tokens_said

REDRAW = 0.1  # seconds between redraws: turns of a small model are shorter
PLAIN = 30.0  # seconds between lines without a terminal
SECOND = 1.0  # between redraws of the clock
LONG = 5.0  # seconds of preparation after which an eager arm is named; compiled arms are named at once
HOUR = 3600.0  # seconds; the remaining time is estimated from turns this recent, which take minutes for a large model
ABSENT = "–"
WIDE = 2.0  # an interval is shown if its upper bound is below this multiple of its lower one
OPEN = "…"
LABEL = 32  # maximum characters of a data set's or method's name


@dataclass
class Rolling:
    """Running totals of a cell: acceptance, and seconds and tokens of baseline and method by prompt or batch."""

    samples: int = 0
    prompts: dict[str, tuple[float, int, float, int]] = field(default_factory=dict)
    overlap: float = 0.0
    tested: int = 0
    failed: bool = False  # whether its deployment is NOT LOSSLESS by an audit

    @staticmethod
    def of(samples: Iterable[Sample], failed: bool = False) -> "Rolling":
        found = Rolling(failed=failed)
        for sample in samples:
            found.add(sample)
        return found

    def add(self, sample: Sample) -> None:
        base, ours = sample.baseline, sample.method
        slow, slow_tokens, fast, tokens = self.prompts.get(sample.draw, (0.0, 0, 0.0, 0))
        totals = (slow + base.seconds, slow_tokens + len(base.tokens), fast + ours.seconds, tokens + len(ours.tokens))
        self.prompts[sample.draw] = totals
        self.samples += 1
        self.overlap += math.fsum(x for r in ours.rounds for x in r.overlap)
        self.tested += sum(r.tested for r in ours.rounds)

    @property
    def alpha(self) -> float:
        return min(metrics.ratio(self.overlap, self.tested), 1.0) if self.tested else math.nan

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        """Of baseline and method."""
        slow, slow_tokens, fast, tokens = (math.fsum(column) for column in zip(*self.prompts.values(), strict=True))
        return metrics.ratio(slow_tokens, slow), metrics.ratio(tokens, fast)

    @property
    def speedup(self) -> statistics.Interval:
        """The final table's headline number, from the results so far."""
        slow, slow_tokens, fast, tokens = zip(*self.prompts.values(), strict=True)
        return statistics.speedup_interval(slow, slow_tokens, fast, tokens)


def name_of(spec: RunSpec) -> str:
    """The name of a cell in progress output, with its non-default distinguishing settings."""
    heat = f" T={spec.temperature:g}" if spec.temperature else ""
    rows = f" {rows_said(spec.batch, spec.arrivals)}" if spec.batch > 1 else ""
    length = f" {tokens_said(spec.context)} tokens" if spec.context else ""
    return f"{data_of(spec)}{length}{heat}{rows} {arm_of(spec)}"


def data_of(spec: RunSpec) -> str:
    """The data set; for a file, only its name."""
    name = spec.dataset.rsplit("/", 1)[-1] if ":" in spec.dataset else spec.dataset
    return clean(name, LABEL)


def arm_of(spec: RunSpec) -> str:
    """The method and lookahead of a cell, which distinguish it within a group."""
    rule = f"K={spec.k}" if spec.schedule == "constant" else f"K≤{spec.k} {spec.schedule}"
    if spec.method == CHOOSING:
        rule = "of " + clean(str(spec.choices), LABEL)
    rates = "" if spec.acceptance is None else f" at {','.join(map(str, spec.acceptance))}"
    return f"{clean(drafted_by(spec.spec_config, spec.spec_args, spec.method), LABEL)} {rule}{clean(rates, LABEL)}"


def live_line(rolling: Rolling) -> str:
    """α, tokens per second of both arms and the speedup with its interval."""
    slow, fast = rolling.tokens_per_second
    return f"α {two_decimals(rolling.alpha)}  {rate(slow)} → {rate(fast)} tokens/s  {speedup_text(rolling)}"


def speedup_text(rolling: Rolling) -> str:
    """The speedup with its interval, which is omitted while it is wide or over few prompts."""
    found = rolling.speedup
    shown = len(rolling.prompts) >= statistics.FEWEST and found.high < WIDE * found.low
    bounds = f"{found.low:.2f}–{found.high:.2f}" if shown else OPEN
    return ABSENT if math.isnan(found.value) else f"{found.value:.2f}× {bounds}" + f" {LOSSY}" * rolling.failed


def two_decimals(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.2f}"


def rate(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(group: Mapping[RunSpec, Rolling]) -> Table:
    """One line per cell of a group; in 60 columns long names are folded, numbers are not."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column("", overflow="fold")  # this one shrinks: rich takes width from columns that may wrap
    for title in ("n", "α", "tokens/s", "speedup"):
        made.add_column(title, justify="right" if title == "n" else "left", no_wrap=True, min_width=len(title))
    for spec, rolling in group.items():
        if rolling.samples:
            slow, fast = rolling.tokens_per_second
            shown = (two_decimals(rolling.alpha), f"{rate(slow)} → {rate(fast)}", speedup_text(rolling))
        else:
            shown = (ABSENT, ABSENT, "warming up")
        made.add_row(Text(arm_of(spec)), str(rolling.samples), *shown)
    return made


# --- what is drawn, and when ------------------------------------------------------------------------------------------


class Repeating(Timer):
    """Calls its function every so many seconds until it is cancelled."""

    def run(self) -> None:
        while not self.finished.wait(self.interval):
            self.function(*self.args)


class Display(Observer):
    """An observer that draws progress.

    `prompts` is the number to decode in all groups, repetitions included; by default, in the groups so far.
    `results` is the folder whose audits count. `now` is the clock, in seconds.
    """

    def __init__(
        self, console: Console, quiet: bool, prompts: int | None = None, results: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._console, self._quiet, self._now = console, quiet, now
        self._failed = failed_audits(results) if results else []
        self._total, self._known, self._done, self._left = prompts or 0, prompts is not None, 0, 0
        self._group: dict[RunSpec, Rolling] = {}
        self._prepared = 0.0  # seconds spent preparing arms
        self._since: float | None = None  # when the current preparation began
        self._late: Timer | None = None  # prints the arm's name; ends before anything is timed
        self._live_cells: set[RunSpec] = set()
        self._threads = 0  # of the run; 0 if unknown
        self._crowded = False  # whether the warning about other programs was printed
        self._progress = bar(console, self._working)
        self._task = self._progress.add_task("loading", total=prompts)
        self._draws = console.is_terminal and not quiet
        self._loading = Bytes(self._picture if self._draws else None, self._say, now)
        # auto_refresh=False: its thread would draw during the timed loop.
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._began = self._drawn = self._said = now()

    def __enter__(self) -> "Display":
        if self._draws:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._say_late(None)
        self._live.stop()

    def loading(self, what: str, done: int, total: int) -> None:
        self._loading(what, done, total)

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        beside = self._live_cells  # of another engine, measured at the same time
        rows = [{**cell.spec.model_dump(mode="json"), **cell.resolved} for cell in cells]
        failed = [bool(fault_of(row, self._failed)) for row in rows]
        begun = {cell.spec: Rolling.of(cell.samples, fails) for cell, fails in zip(cells, failed, strict=True)}
        if beside & set(begun):
            self._again(begun)
            return
        self._group = {**self._group, **begun} if beside else begun
        self._live_cells = beside | set(begun)
        self._threads = int(next((number_in(cell.resolved, "threads") or 0 for cell in cells), 0))
        self._left = prompts + (self._left if beside else 0)
        self._total += 0 if self._known else prompts
        self._skip(min((r.samples for r in begun.values()), default=0))
        self._draw()

    def _again(self, begun: Mapping[RunSpec, Rolling]) -> None:
        """Restart cells whose worker was lost; their lost samples are decoded again."""
        lost = max(self._group[spec].samples - rolling.samples for spec, rolling in begun.items())
        self._total, self._left = self._total + lost, self._left + lost
        self._group |= begun
        self._draw()

    def preparing(self, spec: RunSpec | None) -> None:
        """Exclude preparation from the estimate of the remaining time."""
        now = self._now()
        self._prepared += 0.0 if self._since is None else now - self._since
        self._since = None if spec is None else now
        if spec is not None:
            known = self._known and spec.backend not in ENGINES  # a cluster is elsewhere, a server's load is ours
            self._look(machine.load_average() if known else None)
            self._draw(f"preparing {arm_of(spec)}")
        self._say_late(None if self._quiet else spec)

    def estimated(self, spec: RunSpec, speedup: float, prompts: int) -> None:
        many = f"{prompts} prompts, not compiled yet"
        fault = f", {LOSSY}" * self._group.get(spec, Rolling()).failed
        self._say(f"first estimate, {name_of(spec)}: about {speedup:.1f}× ({many}: provisional{fault})")

    def _say_late(self, spec: RunSpec | None) -> None:
        """Name an arm after a long preparation, on a terminal with a clock; None: no arm is being prepared.

        The thread ends before anything is timed.
        """
        if self._late is not None:
            self._late.cancel()
            self._late.join()
        self._late = None
        if spec is not None and self._draws:
            self._late = Repeating(SECOND, self._draw_clock, [spec, self._now()])
            self._late.daemon = True
            self._late.start()
        elif spec is not None and spec.tier != "eager":
            self._say(f"preparing {name_of(spec)}")
        elif spec is not None:
            self._late = Timer(LONG, self._say, [f"preparing {name_of(spec)}, with its warm-up"])
            self._late.daemon = True
            self._late.start()

    def _working(self) -> float:
        """The elapsed time without the preparation of arms."""
        return (self._now() if self._since is None else self._since) - self._prepared

    def turn(self, samples: Samples) -> None:
        for spec, some in samples.items():
            for sample in some:
                self._group[spec].add(sample)
        self._look(max((s.load for some in samples.values() for s in some if s.load is not None), default=None))
        count = max(map(len, samples.values()), default=0)
        self._done, self._left = self._done + count, self._left - count
        self._progress.update(self._task, advance=count)
        if self._now() - self._drawn >= REDRAW:
            self._draw()
        if self._now() - self._said >= PLAIN and not self._draws:
            self._say(self._line())

    def comparing(self, done: int, texts: int) -> None:
        line = f"comparing outputs: {done} of {texts} texts that differ"
        self._draw(line)
        if self._now() - self._said >= PLAIN and not self._draws:
            self._say(line)

    def _look(self, load: float | None) -> None:
        """Warn once if other programs use the processor, so that the user can stop them."""
        if not self._crowded and load is not None and self._threads and noise.busy(load, self._threads):
            self._crowded = True
            self._say(noise.crowd(load, self._threads, machine.running_besides()))

    def end(self, cell: Cell) -> None:
        self._live_cells.discard(cell.spec)
        if not self._live_cells:
            self._skip(self._left)  # a failure or a narrow interval ended the group early
        if cell.status != "ok" or not self._draws:  # the panel showed it, and the final table will
            done = f"{name_of(cell.spec)}: {cell.status}, {len(cell.samples)} samples"
            self._say(f"{done}, {live_line(Rolling.of(cell.samples))}" if cell.samples else done)
        self._draw()

    def _skip(self, prompts: int) -> None:
        """Skip prompts that are in the journal or whose group has ended."""
        self._total, self._left = self._total - prompts, self._left - prompts

    def _draw(self, work: str = "") -> None:
        if self._draws:
            shown = work or data_of(next(iter(self._group), RunSpec()))
            self._progress.update(self._task, description=shown, total=self._total)
            self._picture(Group(self._progress, table(self._group)))
            self._drawn = self._now()

    def _draw_clock(self, spec: RunSpec, began: float) -> None:
        self._draw(f"preparing {arm_of(spec)}, {self._now() - began:.0f} s")

    def _picture(self, shown: RenderableType) -> None:
        self._live.update(shown, refresh=True)

    def _say(self, line: str) -> None:
        self._said = self._now()
        if not self._quiet:
            sentence(self._console, line)

    def _line(self) -> str:
        """The progress of a long run, in one line."""
        left = (self._working() - self._began) / self._done * (self._total - self._done) / 60
        known = [(spec, rolling) for spec, rolling in self._group.items() if rolling.samples]
        spec, best = max(known, key=lambda item: item[1].speedup.value)
        fastest = f"{name_of(spec)}: {live_line(best)}"
        return f"{self._done} of {self._total} prompts, about {max(left, 0):.0f} min left; {fastest}"


def bar(console: Console, seconds: Callable[[], float]) -> Progress:
    """A bar with the current activity, the prompts done and the remaining time."""
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=HOUR,
        get_time=seconds,
    )


# --- loading ----------------------------------------------------------------------------------------------------------
# Progress of fetching and loading models on stderr: a bar of bytes, or a line now and then. Several threads
# may call it.

LOADING_REDRAW = 0.1  # seconds between redraws
SOON, AGAIN = 3.0, 30.0  # seconds until the first line without a terminal, and between later ones


class Bytes:
    """Loading progress, drawn or printed. `draw` is None without a terminal; `now` is the clock, in seconds."""

    def __init__(
        self,
        draw: Callable[[RenderableType], None] | None,
        tell: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw, self._tell, self._now = draw, tell, now
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), DownloadColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), get_time=now, auto_refresh=False)
        self._task = self._bar.add_task("")
        self._what, self._drawn, self._due, self._lock = "", 0.0, 0.0, Lock()

    def __call__(self, what: str, done: int, total: int) -> None:
        with self._lock:
            now = self._now()
            if what != self._what:
                self._bar.reset(self._task, description=what, total=total)
                self._what, self._drawn, self._due = what, now - LOADING_REDRAW, now + SOON
            self._bar.update(self._task, completed=done, total=total)
            if self._draw is not None and now - self._drawn >= LOADING_REDRAW:
                self._draw(self._bar)
                self._drawn = now
            if self._draw is None and now >= self._due:
                self._tell(f"{what}: {gigabytes(done)} of {gigabytes(total)}")
                self._due = now + AGAIN


@contextmanager
def shown(console: Console) -> Iterator[Bytes]:
    """A `Bytes` that draws on a console, unless the console is quiet."""
    if console.is_terminal and not console.quiet:
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            yield Bytes(partial(live.update, refresh=True), console.print)
    else:
        yield Bytes(None, lambda line: say(console, [line]))


def load(backend: Backend, spec: RunSpec, longest: int, console: Console) -> None:
    """Load the weights for a job with one cell, whose prompts have up to `longest` tokens, and print notes.

    UnusableModelError, before loading, if memory is insufficient.
    """
    refuse_too_large(fit_of(backend, [Held([spec], longest)]))
    with shown(console) as watch:
        backend.load(watch=watch)
    say(console, [f"note: {warning}" for warning in backend.warnings])
