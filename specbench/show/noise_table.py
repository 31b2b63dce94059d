"""The noise of this machine, the baseline against itself, as rows and as a table.

Knows measured cells; must not know how they were measured.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text
from scipy.special import ndtri

from specbench.results import noise, statistics
from specbench.results.cells import Cell
from specbench.results.noise import faults, steadiness
from specbench.results.samples import by_prompt, speedup_of
from specbench.show.cell_text import one_line, short_dataset
from specbench.show.fitting import Fitted
from specbench.show.markdown import table as table_lines
from specbench.wording import Row

LEVEL, POWER = 0.975, 0.8
EFFECTS = (1, 2, 5)  # percent
SETTINGS = ("dataset", "target", "method", "k", "dtype_resolved", "device_name", "threads", "status", "prompts")
FLOOR = (
    "this is the noise of the machine alone: a method also gains more on some prompts than on others, so the intervals "
    "of a run are wider. No speedup that differs from 1 by less than the smallest effect should be trusted"
)
Line = tuple[str, Callable[[Row], str]]


def noise_row(cell: Cell) -> dict[str, Any]:
    """A cell whose method is the baseline itself: what a ratio of 1 looks like here, and what it takes to see more.

    ratio: baseline ÷ baseline, from totals. log_sd: standard deviation of the log ratio of a prompt (all its repeats).
    smallest_effect: what a run of so many prompts would find in 80 of 100 cases, at the level of the 95 % interval;
    prompts_for_<n>_percent: how many prompts it takes to find an effect of n percent as often.
    """
    found = {name: cell.row().get(name) for name in (*SETTINGS, "repeat")}
    ratio, prompts = speedup_of(cell.samples), len(by_prompt(cell.samples))
    error = statistics.log_error(ratio, prompts)
    log_sd = error * math.sqrt(prompts)
    found |= {
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "log_sd": log_sd,
        "half_width": statistics.half_width(ratio),
        "smallest_effect": math.expm1(_sure() * error),
    }
    found |= {f"prompts_for_{e}_percent": prompts_for(e / 100, log_sd) for e in EFFECTS}
    return found | vars(noise.diagnose(cell.samples)) | vars(steadiness(cell.samples))


def prompts_for(effect: float, log_sd: float) -> int | None:
    """Prompts with which an effect is found in 80 of 100 runs, where log ratios have this standard deviation."""
    if not math.isfinite(log_sd):
        return None
    return max(2, math.ceil((_sure() * log_sd / math.log1p(effect)) ** 2))


def _sure() -> float:
    """How many standard errors an effect must have: 1.96 for the level, 0.84 for the power."""
    return float(ndtri(LEVEL) + ndtri(POWER))


def noise_notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know besides the numbers: the machine's faults, and two equal arms that are not equal."""
    found = []
    for row in rows:
        if row["ratio_low"] > 1 or row["ratio_high"] < 1:
            found.append(
                f"{row['dataset']}: two equal arms differ; by chance that happens in 5 of 100 runs. Run it "
                "again: if it stays, a difference of this size means nothing on this machine"
            )
        numbers = noise.Diagnostics(**{name: row[name] for name in noise.Diagnostics.__dataclass_fields__})
        samples = (row["prompts"] or 0) * (row["repeat"] or 1)
        found += [f"{row['dataset']}: {one.note}" for one in noise.warned(numbers, samples, row["threads"])]
        found += [f"{row['dataset']}: {fault.note}" for fault in faults(row)]
    return [*found, FLOOR]


NOISE_LINES: tuple[Line, ...] = (
    ("prompts", lambda r: str(r["prompts"])),
    ("baseline ÷ itself", lambda r: _number(r["ratio"], "{:.4f}")),
    ("  95 % interval", lambda r: f"{_number(r['ratio_low'], '{:.4f}')} – {_number(r['ratio_high'], '{:.4f}')}"),
    ("  half width", lambda r: _number(r["half_width"], "± {:.2%}")),
    ("sd of the log ratio of a prompt", lambda r: _number(r["log_sd"], "{:.2%}")),
    ("smallest effect found in 80 of 100 runs", lambda r: _number(r["smallest_effect"], "{:.2%}")),
    *(
        (f"  prompts to find {e} % as often", lambda r, e=e: _number(r[f"prompts_for_{e}_percent"], "{}"))
        for e in EFFECTS
    ),
)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else form.format(value)


def grid(rows: Sequence[Row]) -> list[list[str]]:
    """A heading and one line per number, one column per row."""
    heading = ["", *(one_line(short_dataset(r["dataset"])) for r in rows)]
    return [heading, *([label, *(text(r) for r in rows)] for label, text in NOISE_LINES)]


def table(cells: Sequence[Sequence[str]]) -> Fitted:
    """The grid for a terminal."""
    found = Table()
    for number, name in enumerate(cells[0]):
        found.add_column(Text(name), justify="left" if number == 0 else "right")
    for line in cells[1:]:
        found.add_row(*map(Text, line))
    return Fitted(found)


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """The grid as a Markdown table."""
    heading, *lines = [[text.replace("|", "\\|") for text in line] for line in cells]
    return "\n".join(table_lines(heading, lines, "l" + "r" * (len(heading) - 1))) + "\n"
