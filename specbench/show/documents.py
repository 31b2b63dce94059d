"""The results of `calibrate`, `noise`, `verify`, `check` and `design-draft`, for readers and for programs."""

import math
from collections.abc import Sequence
from typing import Any

from specbench.results import noise, statistics
from specbench.results.calibration import Calibration
from specbench.results.cells import Cell
from specbench.results.documents import GREEDY, LEANING, PROOF, RESCORED, SURPRISE, Certificate, Check
from specbench.results.noise import faults, steadiness
from specbench.results.samples import by_prompt, speedup_of
from specbench.show.fitting import Fitted
from specbench.show.table import Numbers, framed, print_records
from specbench.show.text import NOTHING, Format, markdown_table, one_line, paragraphs, short_dataset
from specbench.theory.memory import Fit
from specbench.wording import Row, formatted, gigabytes, literal, number_in, text_in


def calibration_tables(found: Calibration) -> list[Numbers]:
    """Passes by width, the costs of a round, and the optimal K; one or a few columns per context length."""
    return [passes(found), costs(found), choices(found)]


def passes(found: Calibration) -> Numbers:
    header = ["tokens"]
    for one in found.contexts:
        header += [f"ms at {one.context}", "quartiles", "v"]
    rows = [
        (str(points[0].width), *(t for p in points for t in (ms(p.milliseconds), f"{ms(p.low)}–{ms(p.high)}", n(p.v))))
        for points in zip(*(one.target for one in found.contexts), strict=True)
    ]
    title = "One pass of the target over a number of tokens, by length of the context (v: ÷ one token)"
    return Numbers(title, header, rows, together=3)


def costs(found: Calibration) -> Numbers:
    header = ("context", "baseline step ms", "first drafted ms", "later ms", "c first", "c later", "overhead",
              "free width", "break-even α")  # fmt: skip
    rows = []
    for one in found.contexts:
        context, step, first, later, *shares, free, even = one.summary().values()
        times = (ms(step), ms(first), ms(later))
        rows.append((str(context), *times, *map(n, shares), str(free), "none" if even is None else n(even)))
    tier = f" in the tier {found.tier}" * bool(found.tier)
    title = f"What a round costs{tier}; passes up to the free width cost at most 1.10 × one token"
    return Numbers(title, header, rows)


def choices(found: Calibration) -> Numbers:
    header = ["α"]
    for one in found.contexts:
        header += [f"best K at {one.context}", "within 1 %", "speedup"]
    rows = [
        (f"{at[0]['alpha']:g}", *(t for c in at for t in (str(c["best_k"]), c["near_best"], f"{c['speedup']:.2f}×")))
        for at in zip(*(one.choices() for one in found.contexts), strict=True)
    ]
    return Numbers("The K to choose for an acceptance α, with these costs", header, rows, together=3)


def ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def n(value: float) -> str:
    return f"{value:.3f}"


# --- noise ------------------------------------------------------------------------------------------------------------

LEVEL, POWER = 0.975, 0.8
EFFECTS = (1, 2, 5)  # percent
SETTINGS = ("dataset", "target", "method", "k", "dtype_resolved", "device_name", "threads", "status", "prompts")
FLOOR = (
    "this is the noise of the machine alone: a method also gains more on some prompts than on others, so the intervals "
    "of a run are wider. No speedup that differs from 1 by less than the smallest effect should be trusted"
)


def noise_row(cell: Cell) -> dict[str, Any]:
    """A cell whose method is the baseline itself: the spread of a ratio of 1 here, and the smallest detectable effects.

    ratio: baseline ÷ baseline, from totals. log_sd: standard deviation of the log ratio of a prompt (all its
    repeats). smallest_effect: found by a run with this many prompts in 80 of 100 cases, at the level of the
    95 % interval; prompts_for_<n>_percent: number of prompts needed to find an effect of n percent as often.
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
    return found | noise.diagnose(cell.samples) | steadiness(cell.samples)


def prompts_for(effect: float, log_sd: float) -> int | None:
    """Prompts needed to find an effect in 80 of 100 runs, given this standard deviation of log ratios."""
    if not math.isfinite(log_sd):
        return None
    return max(2, math.ceil((_sure() * log_sd / math.log1p(effect)) ** 2))


def _sure() -> float:
    """The required effect in standard errors: 1.96 for the level, 0.84 for the power."""
    from scipy.special import ndtri

    return float(ndtri(LEVEL) + ndtri(POWER))


def noise_notes(rows: Sequence[Row]) -> list[str]:
    """Notes on the numbers: the machine's faults, and significant differences of equal arms."""
    found = []
    for row in rows:
        if row["ratio_low"] > 1 or row["ratio_high"] < 1:
            found.append(
                f"{row['dataset']}: two equal arms differ; by chance that happens in 5 of 100 runs. Run it "
                "again: if it stays, a difference of this size means nothing on this machine"
            )
        samples = (row["prompts"] or 0) * (row["repeat"] or 1)
        found += [f"{row['dataset']}: {one.note}" for one in noise.warned(row, samples, row["threads"])]
        found += [f"{row['dataset']}: {fault.note}" for fault in faults(row)]
    return [*found, FLOOR]


NOISE_LINES: tuple[tuple[str, ...], ...] = (  # label, format, columns
    ("prompts", "{}", "prompts"),
    ("baseline ÷ itself", "{:.4f}", "ratio"),
    ("  95 % interval", "{:.4f}", "ratio_low", "ratio_high"),
    ("  half width", "± {:.2%}", "half_width"),
    ("sd of the log ratio of a prompt", "{:.2%}", "log_sd"),
    ("smallest effect found in 80 of 100 runs", "{:.2%}", "smallest_effect"),
    *((f"  prompts to find {e} % as often", "{}", f"prompts_for_{e}_percent") for e in EFFECTS),
)


def noise_grid(rows: Sequence[Row]) -> list[list[str]]:
    """A heading and one line per number, one column per row."""
    grid = [["", *(one_line(short_dataset(row["dataset"])) for row in rows)]]
    for label, form, *columns in NOISE_LINES:
        numbers = [[row[name] for name in columns] for row in rows]
        grid.append([label, *(" – ".join(_number(value, form) for value in some) for some in numbers)])
    return grid


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else form.format(value)


def noise_markdown(cells: Sequence[Sequence[str]]) -> str:
    heading, *lines = [[text.replace("|", "\\|") for text in line] for line in cells]
    return "\n".join(markdown_table(heading, lines, "l" + "r" * (len(heading) - 1))) + "\n"


# --- certificates -----------------------------------------------------------------------------------------------------

CHECKS = {  # the heading of every check of a method
    PROOF: "proof", GREEDY: "greedy", RESCORED: "re-\nscored", SURPRISE: "z sur-\nprise", LEANING: "z lean-\ning",
}  # fmt: skip
LINES = ("check", "method", "outcome", "found", "limit", "detail")


def certificate_tables(found: Certificate) -> list[Fitted]:
    """The checks of the pair, and those of the methods; each table fits 80 columns."""
    own = [check for check in found.checks if not check.method or check.name not in CHECKS]
    names = list(dict.fromkeys(check.method for check in found.checks if check.method))
    shown = {(check.method, check.name): check for check in found.checks}
    columns = [name for name in CHECKS if any((method, name) in shown for method in names)]
    lines = [
        [name, *(short(shown.get((name, column))) for column in columns), outcome_of(found, name)] for name in names
    ]
    header = ["method", *(CHECKS[name] for name in columns), "outcome"]
    made = [certificate_table(["check", "found", "limit", "outcome"], [control(check) for check in own])] if own else []
    return [*made, *([certificate_table(header, lines)] if names else [])]


def certificate_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> Fitted:
    shown = [list(map(one_line, line)) for line in lines]
    return framed(header, shown, left=(0, len(header) - 1), fold=range(len(header)))


def control(check: Check) -> list[str]:
    name = f"{check.name} ({check.method})" if check.method else check.name
    return [name, number(check.found), number(check.limit), check.outcome]


def short(check: Check | None) -> str:
    """A check in one cell: the outcome of a comparison, else its number."""
    if check is None or check.outcome == "not checked":
        return NOTHING
    if check.name == GREEDY:
        return "equal" if check.found is None and check.outcome != "error" else check.outcome
    if check.found is None:
        return check.outcome
    return f"{check.found:.2f}" if check.name in (SURPRISE, LEANING) else number(check.found)


def outcome_of(found: Certificate, method: str) -> str:
    """The worst of a method's outcomes."""
    order = ("FAILED", "error", "lossy", "numeric", "ok", "not checked")
    return min((check.outcome for check in found.checks if check.method == method), key=order.index)


def number(value: float | None) -> str:
    """Small errors in scientific notation, z and counts as plain numbers."""
    if value is None:
        return NOTHING
    if not math.isfinite(value) or value == int(value):
        return f"{value:g}"
    return f"{value:.2f}" if 0.05 <= abs(value) < 1000 else f"{value:.1e}"


def certificate_notes(found: Certificate) -> list[str]:
    """What failed or could not be checked, one sentence each; equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for check in found.checks:
        if check.outcome == "not checked":
            reasons.setdefault(check.detail, []).append(check.method)
    said = [f"not checked: {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items()]
    broken = [check for check in found.checks if check.outcome in ("FAILED", "error")]
    return [*said, *(f"{check.outcome}: {sentence(check)}" for check in broken)]


def sentence(check: Check) -> str:
    numbers = f": {number(check.found)}, limit {number(check.limit)}" if check.found is not None else ""
    return f"{check.name}{f' of {check.method}' if check.method else ''}{numbers} ({check.detail})"


def certificate_records(found: Certificate) -> list[dict[str, Any]]:
    """One row per check, for programs."""
    return [{"check": c.name, **{name: getattr(c, name) for name in LINES[1:]}} for c in found.checks]


def certificate_page(found: Certificate) -> str:
    """The certificate in Markdown: its subject, and every check with its statistic and threshold."""
    lines = [[literal(word(row[name])) for name in LINES] for row in certificate_records(found)]
    facts = {**found.pair, **found.settings, **found.environment}
    known = [[literal(str(name)), literal(str(value))] for name, value in facts.items() if value is not None]
    return "\n".join([
        "# Certificate of losslessness", "",
        certificate_summary(found), "",
        *paragraphs([literal(note) for note in certificate_notes(found)]),
        *markdown_table(LINES, lines, "lllrrl"), "",
        "## What it is of", "",
        *markdown_table(("", ""), known, "ll"), "",
        f"Command: `{found.command}`, {found.started}.", "",
    ])  # fmt: skip


def word(value: object) -> str:
    return number(value) if isinstance(value, float | int) else str(value or "")


def certificate_summary(found: Certificate) -> str:
    counts = {name: sum(check.outcome == name for check in found.checks) for name in ("ok", "numeric", "lossy")}
    fine = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    if found.failed:
        return f"NOT LOSSLESS: {len(found.failed)} of {len(found.checks)} checks failed ({fine or 'none passed'})"
    return f"{'INCOMPLETE' if found.broken else 'LOSSLESS'} as far as was checked: {fine}"


# --- memory of a run --------------------------------------------------------------------------------------------------


def memory_rows(fit: Fit) -> list[dict[str, Any]]:
    """Rows for programs: the memory of every role, the total, and the free memory."""
    parts = [{"kind": "memory", "what": part.kind, "name": part.role, "bytes": part.size} for part in fit.demand.parts]
    total = {"kind": "memory", "what": "total", "name": fit.device, "bytes": fit.total}
    return [*parts, total, {"kind": "memory", "what": "free", "name": fit.device, "bytes": fit.free}]


def memory_table(fit: Fit) -> list[dict[str, Any]]:
    rows = [{"role": part.role, "takes": part.kind, "memory": gigabytes(part.size)} for part in fit.demand.parts]
    rows.append({"role": "all", "takes": "", "memory": gigabytes(fit.total)})
    if fit.used:
        rows.append({"role": "this process", "takes": "already", "memory": gigabytes(fit.used)})
    if fit.free is not None:
        rows.append({"role": fit.device, "takes": "free", "memory": gigabytes(fit.free)})
    if fit.host is not None:
        rows.append({"role": "host", "takes": "while reading weights", "memory": gigabytes(fit.demand.loading)})
        rows.append({"role": "host", "takes": "free", "memory": gigabytes(fit.host)})
    return rows


# --- design table -----------------------------------------------------------------------------------------------------

COUNTED = {"all": "all parameters, embedding included", "layers": "parameters in layers, without the embedding"}


def print_design(rows: Sequence[Row], style: Format) -> None:
    """Print the rows of a design, every column for programs."""
    print_records(rows, {title(rows): [line(row) for row in rows]}, style)


def title(rows: Sequence[Row]) -> str:
    return (
        "Shapes within each parameter budget (1M-2x128: 1M, 2 layers, width 128; counted are "
        f"{COUNTED[rows[0]['budget_counts']]}), the fastest measured one first; predicted and measured: "
        "tokens per second at the best K"
    )


def line(row: Row) -> dict[str, Any]:
    return {
        "shape": text_in(row, "name"),
        "depth": text_in(row, "layers"),
        "width": text_in(row, "hidden"),
        "heads": text_in(row, "heads"),
        "parameters": formatted(number_in(row, "parameters"), ",.0f"),
        "in layers": formatted(number_in(row, "parameters_in_layers"), ",.0f"),
        "latency_ms": spread(row, "latency_ms", ("latency_low_ms", "latency_high_ms"), ".3g"),
        "c": formatted(number_in(row, "c"), ".3f"),
        "alpha": formatted(number_in(row, "alpha"), ".3f"),
        "K": text_in(row, "k") or "–",
        "tokens/round": formatted(number_in(row, "tokens_per_round"), ".2f"),
        "predicted": formatted(number_in(row, "tokens_per_second_predicted"), ".1f"),
        "measured": formatted(number_in(row, "tokens_per_second"), ".1f"),
        "speedup": spread(row, "speedup", ("speedup_low", "speedup_high"), ".3f"),
        "front": {"True": "yes", "False": "no"}.get(str(row.get("on_front")), "–"),
        "training": text_in(row, "reached"),
    }


def spread(row: Row, column: str, bounds: tuple[str, str], form: str) -> str:
    value, low, high = (formatted(number_in(row, name), form) for name in (column, *bounds))
    return value if NOTHING in (low, high) else f"{value} [{low}, {high}]"
