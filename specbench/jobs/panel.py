"""What a group of cells looks like while it is measured: its rolling numbers, as a table and as lines.

Knows samples and rich; must not know when it is drawn, or where anything is stored. A group may have thousands of
turns, so each is added to running totals.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from specbench import metrics
from specbench.results import statistics
from specbench.results.samples import Sample
from specbench.spec import CHOOSING, RunSpec
from specbench.token_counts import said
from specbench.wording import clean, rows_said

ABSENT = "–"
WIDE = 2.0  # an interval is shown where its upper bound is less than so many times its lower one
OPEN = "…"
LABEL = 32  # characters of a data set's or a method's name


@dataclass
class Rolling:
    """Totals of one cell so far: acceptance, and (baseline seconds, baseline tokens, seconds, tokens) by prompt, or by
    batch of prompts."""

    samples: int = 0
    prompts: dict[str, tuple[float, int, float, int]] = field(default_factory=dict)
    overlap: float = 0.0
    tested: int = 0

    @staticmethod
    def of(samples: Iterable[Sample]) -> "Rolling":
        found = Rolling()
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
        """The headline of the final table, from what there is so far."""
        slow, slow_tokens, fast, tokens = zip(*self.prompts.values(), strict=True)
        return statistics.speedup_interval(slow, slow_tokens, fast, tokens)


def name_of(spec: RunSpec) -> str:
    """A cell as progress calls it, with what is not as usual and may tell it from the others."""
    heat = f" T={spec.temperature:g}" if spec.temperature else ""
    rows = f" {rows_said(spec.batch, spec.arrivals)}" if spec.batch > 1 else ""
    length = f" {said(spec.context)} tokens" if spec.context else ""
    return f"{data_of(spec)}{length}{heat}{rows} {arm_of(spec)}"


def data_of(spec: RunSpec) -> str:
    """The data set; of a file only its name."""
    name = spec.dataset.rsplit("/", 1)[-1] if ":" in spec.dataset else spec.dataset
    return clean(name, LABEL)


def arm_of(spec: RunSpec) -> str:
    """The method and lookahead of a cell, by which those of a group differ."""
    rule = f"K={spec.k}" if spec.schedule == "constant" else f"K≤{spec.k} {spec.schedule}"
    if spec.method == CHOOSING:
        rule = "of " + clean(str(spec.choices), LABEL)
    rates = "" if spec.acceptance is None else f" at {','.join(map(str, spec.acceptance))}"
    return f"{clean(spec.method, LABEL)} {rule}{clean(rates, LABEL)}"


def live_line(rolling: Rolling) -> str:
    """α, tokens per second of both arms and the speedup with its interval."""
    slow, fast = rolling.tokens_per_second
    return f"α {two_decimals(rolling.alpha)}  {rate(slow)} → {rate(fast)} tokens/s  {speedup_text(rolling)}"


def speedup_text(rolling: Rolling) -> str:
    """The speedup with its interval, which stays open while it is over few prompts or wide: it says nothing then."""
    found = rolling.speedup
    shown = len(rolling.prompts) >= statistics.FEWEST and found.high < WIDE * found.low
    bounds = f"{found.low:.2f}–{found.high:.2f}" if shown else OPEN
    return ABSENT if math.isnan(found.value) else f"{found.value:.2f}× {bounds}"


def two_decimals(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.2f}"


def rate(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(group: Mapping[RunSpec, Rolling]) -> Table:
    """One line per cell of a group where names are short; in 60 columns a long one is folded, and no number is."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column("", overflow="fold")  # the one that gives way: rich takes width from columns that may wrap
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
