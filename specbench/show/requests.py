"""Requests without and with a draft as sentences and tables: the answer, both sides of every load, and goodput."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from specbench.judge.requests import turning
from specbench.show.fitting import draw, screen, sentence
from specbench.show.table import Table
from specbench.show.text import Format, print_data
from specbench.wording import counted, formatted

Rows = Sequence[Mapping[str, Any]]

ARMS = {"BASE": "baseline_", "SPEC": ""}
TIMES = {"ttft": "TTFT", "per_token": "TPOT", "per_step": "per step", "latency": "end to end"}
LEGEND = (
    "TTFT: to the first piece of an answer; TPOT: (end to end − TTFT) ÷ (tokens − 1); per step: between two pieces of "
    "the stream. With speculation a piece holds all tokens of a round, so the time per step (often called ITL) grows "
    "while the time per token falls: compare TPOT."
)
NOTE = (
    "speedup: BASE ÷ SPEC in seconds per token after the first, paired by prompt, with its 95 % interval over prompts. "
    "The runs were made one after the other: what changed between them besides the draft is in no interval."
)


def print_requests(rows: Rows, limits: Mapping[str, float], style: Format) -> None:
    """Print the rows for programs, or sentences and tables for readers."""
    if print_data(rows, style):
        return
    tables = [speedups(rows), latencies(rows), *([goodputs(rows, limits)] if limits else [])]
    lines = [*map(sentence_of, rows), *turning_said(rows), texts_said(rows)]
    if style == "md":
        typer.echo("\n\n".join([*filter(None, lines), *(table.markdown() for table in tables)]))
        return
    for line in filter(None, lines):
        sentence(screen(), line)
    for table in tables:
        typer.echo()
        draw(screen(), table.drawn())


def sentence_of(row: Mapping[str, Any]) -> str:
    """The answer for one load."""
    leaning = f" (leaning {row['leaning']})" if row["answer"] == "PROVISIONAL" else ""
    doubts = f"; {row['doubts']}" if row["doubts"] else ""
    more = f"; about {counted(row['prompts_to_settle'], 'prompt')} would settle it" if row["prompts_to_settle"] else ""
    return (
        f"{row['answer']}{leaning}: with {row['load']}, SPEC is {formatted(row['speedup'], '.2f')}× as fast per token "
        f"as BASE, {between(row, 'speedup')}, over {counted(row['prompts'], 'prompt')}{doubts}{more}"
    )


def between(row: Mapping[str, Any], name: str, form: str = ".2f", scale: float = 1) -> str:
    """The bounds of an interval, or that there is none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "no interval" if low is None else f"{scale * low:{form}} – {scale * high:{form}}"


def turning_said(rows: Rows) -> list[str]:
    """From which concurrency speculation no longer pays, if several were measured."""
    if sum(row["concurrency"] is not None for row in rows) < 2:
        return []
    least = turning(rows)
    return [
        "speculation pays at every concurrency that was measured"
        if least is None
        else f"from {least} requests in flight on it is not certain that speculation pays"
    ]


def texts_said(rows: Rows) -> str:
    """How many answers are equal; empty if all are, or if the files hold none."""
    same, compared = (sum(row[name] or 0 for row in rows) for name in ("texts_identical", "texts_compared"))
    why = "sampled texts differ by chance, greedy ones by rounding or by a fault, which these files do not distinguish"
    return f"{same} of {counted(compared, 'answer')} have identical texts: {why}" if same < compared else ""


def speedups(rows: Rows) -> Table:
    """One line for every load: the ratio, and tokens per second of a user and of all."""
    header = ("load", "prompts", "speedup", "95 %", *(f"tokens/s\nper user\n{arm}" for arm in ARMS))
    header += (*(f"tokens/s\nin all\n{arm}" for arm in ARMS), "accepted\nlength", "accepted\nper drafted")
    lines = [
        [
            row["load"], str(row["prompts"]), f"{formatted(row['speedup'])}×", between(row, "speedup", ".3f"),
            *(formatted(row[f"{arm}{column}"], ".1f")
              for column in ("tokens_per_second", "served_tokens_per_second") for arm in ARMS.values()),
            formatted(row["acceptance_length"], ".2f"), formatted(row["accepted_per_drafted"], ".2f"),
        ]
        for row in rows
    ]  # fmt: skip
    first = rows[0]
    return Table(f"{first['model']} · {first['tool']}", header, lines, left=1, legend=f"{NOTE} {source(first)}")


def source(row: Mapping[str, Any]) -> str:
    """Where the acceptance comes from."""
    return {
        "requests": "Acceptance: 1 + accepted ÷ rounds, from the records of the requests.",
        "counters": "Acceptance: 1 + accepted ÷ rounds, from the counters of the server during the run.",
    }.get(
        row["acceptance_source"],
        "SPEC has no acceptance: start vLLM with --per-request-spec-decode-metrics summary.",
    )


def latencies(rows: Rows) -> Table:
    """Median and p99 of all times of both sides."""
    points = ("median", "p99")
    header = ("load", "", *(f"{label}\n{point} ms" for label in TIMES.values() for point in points))
    lines = [
        [row["load"], side, *(formatted(row[f"{arm}{name}_{point}_ms"], ".1f") for name in TIMES for point in points)]
        for row in rows
        for side, arm in ARMS.items()
    ]
    return Table("Latency of requests", header, lines, left=2, keys=2, legend=LEGEND)


def goodputs(rows: Rows, limits: Mapping[str, float]) -> Table:
    """The share of requests within all limits, how many a second, and the difference."""
    header = ("load", "", "within\nlimits", "95 %", "goodput\nrequests/s", "95 %")
    lines = [
        [
            row["load"], side, f"{100 * row[f'{arm}slo_share']:.1f} %", between(row, f"{arm}slo_share", ".1f", 100),
            formatted(row[f"{arm}goodput"], ".2f"), between(row, f"{arm}goodput"),
        ]
        for row in rows
        for side, arm in ARMS.items()
    ]  # fmt: skip
    findings = [
        f"with {row['load']}: {100 * row['slo_share_difference']:+.1f} percentage points with the draft, "
        f"{between(row, 'slo_share_difference', '+.1f', 100)}"
        for row in rows
    ]
    said = ", ".join(f"{name} ≤ {1000 * most:g} ms" for name, most in limits.items())
    return Table(
        f"Requests within {said}", header, lines, left=2, keys=2, findings=findings,
        legend="Failed requests are within no limit. Intervals: Wilson's, and Newcombe's for the paired difference.",
    )  # fmt: skip
