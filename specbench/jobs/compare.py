"""The body of `specbench compare`: from runs and a policy to tables, files and an exit code. Loads no torch."""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import typer

from specbench.errors import NotComparableError, RegressionError, UsageError
from specbench.files import check_regular
from specbench.jobs.given_runs import verified
from specbench.judge import compare as judge
from specbench.judge.compare import Comparison, Finding, Policy
from specbench.judge.compare_input import Record, read_records
from specbench.judge.holm_test import Criterion
from specbench.replacing import replace_text
from specbench.show import compare_export, compare_table
from specbench.show.compare_table import sentence_of, summary
from specbench.show.fitting import draw, screen

Style = Literal["table", "md", "json", "junit", "gha"]

GATE = re.compile(
    r"(?P<metric>[a-z][a-z0-9_]*)\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d{1,6}(?:\.\d{1,6})?)\s*%", re.ASCII
)
LEAST = -1 + 1e-9  # the change of a number that fell to nothing, as it has a logarithm
PIPED = 120  # columns where stdout is no terminal


@dataclass(frozen=True)
class Output:
    """How the comparison is printed on stdout, and the files that it is written to besides."""

    style: Style
    quiet: bool
    junit: Path | None
    gha: Path | None


def start(bases: Sequence[Path], news: Sequence[Path], policy: Policy, output: Output) -> None:
    """Compare the i-th of `news` with the i-th of `bases`, or the last; raises what the exit code says."""
    if len(bases) > len(news):
        raise UsageError("a --base-rerun belongs to a second NEW: give no more runs of BASE than of NEW")
    checked = verified([*bases, *news], samples=True)
    old, new = [[read_records(path) for path in paths] for paths in (bases, news)]
    check_gates(policy.gates, old[0])
    result = replace(judge.compare_runs(old, new, policy), unverified=tuple(checked.bare))
    leave(result, policy.confidence, new[0], output.junit, output.gha)
    if not output.quiet:
        checked.tell()
        show(result, output.style, policy.confidence, new[0])
    conclude(result)


def policy_of(fail_on: list[str], checks: list[str], margin: float | None, level: float) -> Policy:
    """What decides, by the options; UsageError where they contradict each other."""
    if fail_on and (checks or margin is not None):
        raise UsageError("--fail-on names the numbers and their margins itself: leave out --checks and --margin")
    if unknown := [name for name in checks if name not in judge.TIERS]:
        raise UsageError(f"unknown --checks {unknown[0][:60]!r}: choose {', '.join(judge.TIERS)}")
    return judge.Policy(
        tiers=tuple(name for name in judge.TIERS if name in checks or not checks),
        gates=tuple(dict.fromkeys(map(gate_of, fail_on))),
        ratio_margin=judge.RATIO_MARGIN if margin is None else margin / 100,
        absolute_margin=judge.ABSOLUTE_MARGIN if margin is None else margin / 100,
        confidence=level / 100,
    )


def gate_of(text: str) -> Criterion:
    """`speedup<-5%`: worse is lower by more than 5 %. `c>+10%`: worse is higher by more than 10 %."""
    match = GATE.fullmatch(text.strip())
    percent = float(match["percent"]) if match else 0.0
    if match is None or (percent > 0 if match["sign"] == "<" else percent < 0):
        raise UsageError(
            f'cannot read --fail-on {text[:60]!r}: write a column of results.csv, < or >, and percent: "speedup<-5%" '
            'fails where it falls by more than 5 %, "c>+10%" where it rises by more than 10 %'
        )
    if percent <= -100:
        raise UsageError(f"--fail-on {text[:60]!r}: nothing falls by 100 % or more, so it could never fail")
    return Criterion(match["metric"], -1 if match["sign"] == "<" else 1, abs(percent) / 100)


def check_gates(gates: tuple[Criterion, ...], run: list[Record]) -> None:
    """UsageError where BASE has no such column; a mistyped gate must not pass."""
    known = run[0].row
    for gate in gates:
        if gate.metric not in known:
            near = ", ".join(get_close_matches(gate.metric, known, n=3, cutoff=0.0))
            raise UsageError(f"--fail-on: results.csv has no column {gate.metric}; did you mean {near}?")


def show(result: Comparison, style: Style, confidence: float, new: list[Record]) -> None:
    """The data on stdout."""
    if style == "table":
        draw(screen(PIPED), compare_table.table(result, confidence))
        return
    printed = {
        "md": lambda: compare_table.markdown(result, confidence),
        "json": lambda: compare_table.as_json(result),
        "junit": lambda: compare_export.junit(result),
        "gha": lambda: compare_export.history(new),
    }
    typer.echo(printed[style](), nl=False)


def leave(result: Comparison, confidence: float, new: list[Record], junit: Path | None, gha: Path | None) -> None:
    """The files that were asked for, and the job summary where GitHub Actions keeps one."""
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        write(Path(place), compare_table.markdown(result, confidence), append)
    if junit:
        write(junit, compare_export.junit(result))
    if gha:
        write(gha, compare_export.history(new))


def append(file: Path, text: str) -> None:
    """Add a text to a file, which others write as well. OSError for a pipe or a device, which might not take it."""
    if file.exists():
        check_regular(file)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(text)


def write(file: Path, text: str, how: Callable[[Path, str], None] = replace_text) -> None:
    """Replace a file by a text, or add it; UsageError in one line where that is impossible."""
    try:
        how(file, text)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from error


def conclude(result: Comparison) -> None:
    """End with the exit code of the worst row."""
    if failed := result.having("REGRESSION"):
        worst = max(failed, key=how_bad)
        more = f"; and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise RegressionError(
            f"{len(failed)} of {len(result.findings)} comparisons regressed, worst: {sentence_of(worst)}{more}"
        )
    if result.code:
        raise NotComparableError(
            f"nothing regressed, but not everything could be compared ({summary(result)}): "
            f"{sentence_of(result.unjudged[0])}; --checks or --fail-on narrows what is asked for"
        )


def how_bad(one: Finding) -> float:
    """How far a number fell or rose, on the log scale; a finding without a number is less than any."""
    return -1.0 if one.change is None else abs(math.log1p(max(one.change, LEAST)))
