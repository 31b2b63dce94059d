"""`specbench compare`: is a new run worse than an old one, as an exit code for CI."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specbench.cli.verify import verified
from specbench.errors import NotComparableError, RegressionError, UsageError

if TYPE_CHECKING:
    from specbench.judge.compare import Comparison, Policy
    from specbench.judge.compare_input import Record
    from specbench.judge.holm_test import Criterion

Format = Literal["table", "md", "json", "junit", "gha"]

GATE = re.compile(
    r"(?P<metric>[a-z][a-z0-9_]*)\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d{1,6}(?:\.\d{1,6})?)\s*%", re.ASCII
)
PIPED = 120  # columns where stdout is no terminal
MOST = 50.0  # percent; a larger margin would call nothing a regression


def compare(
    base: Annotated[Path, typer.Argument(help="Run folder or results.csv to compare with.")],
    new: Annotated[
        list[Path], typer.Argument(help="The run in question, and reruns of it: all must show a regression.")
    ],
    base_rerun: Annotated[
        list[Path] | None, typer.Option(help="A rerun of BASE, for the second NEW, and so on. Repeatable.")
    ] = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(help='Gates such as "speedup<-5%" or "c>+10%"; they alone decide. Repeatable.')
    ] = None,
    tier: Annotated[list[str] | None, typer.Option(help="Only deterministic, ratios or absolute. Repeatable.")] = None,
    margin: Annotated[
        float | None, typer.Option(min=0, max=MOST, help="Percent a number may be worse. Default: 2.5; absolute: 5.")
    ] = None,
    confidence: Annotated[float, typer.Option(min=80, max=99.99, help="Percent, one-sided, over a whole tier.")] = 99,
    output: Annotated[Format, typer.Option("--format", help="How to print on stdout.")] = "table",
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file, too.")] = None,
    gha: Annotated[Path | None, typer.Option(help="Write NEW as customBiggerIsBetter JSON to this file, too.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but an error.")] = False,
) -> None:
    """Compare runs: exit 0 if nothing became worse, 3 on a regression, 7 where something could not be compared.

    Counts and outputs must be equal where seeds and versions are; ratios and times must be worse by more than the
    margin and by more than chance. Under GitHub Actions the table is added to the summary of the job.
    """
    from specbench.judge.compare import compare_runs as compared
    from specbench.judge.compare_input import read_records

    policy = policy_of(fail_on or [], tier or [], margin, confidence)
    if len(base_rerun or []) >= len(new):
        raise UsageError("a --base-rerun belongs to a second NEW: give no more runs of BASE than of NEW")
    checked = verified([base, *(base_rerun or []), *new], samples=True)
    bases, news = [[read_records(path) for path in paths] for paths in ([base, *(base_rerun or [])], new)]
    check_gates(policy.gates, bases[0])
    result = replace(compared(bases, news, policy), unverified=tuple(checked.bare))
    leave(result, policy.confidence, news[0], junit, gha)
    if not quiet:
        checked.tell()
        show(result, output, policy.confidence, news[0])
    conclude(result)


def policy_of(fail_on: list[str], tiers: list[str], margin: float | None, confidence: float) -> "Policy":
    """What decides, by the options; UsageError where they contradict each other."""
    from specbench.judge import compare as default

    if fail_on and (tiers or margin is not None):
        raise UsageError("--fail-on names the numbers and their margins itself: leave out --tier and --margin")
    if unknown := [name for name in tiers if name not in default.TIERS]:
        raise UsageError(f"unknown --tier {unknown[0][:60]!r}: choose {', '.join(default.TIERS)}")
    return default.Policy(
        tiers=tuple(name for name in default.TIERS if name in tiers or not tiers),
        gates=tuple(dict.fromkeys(map(gate_of, fail_on))),
        ratio_margin=default.RATIO_MARGIN if margin is None else margin / 100,
        absolute_margin=default.ABSOLUTE_MARGIN if margin is None else margin / 100,
        confidence=confidence / 100,
    )


def gate_of(text: str) -> "Criterion":
    """`speedup<-5%`: worse is lower by more than 5 %. `c>+10%`: worse is higher by more than 10 %."""
    from specbench.judge.holm_test import Criterion

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


def check_gates(gates: "tuple[Criterion, ...]", run: "list[Record]") -> None:
    """UsageError where BASE has no such column; a mistyped gate must not pass."""
    from difflib import get_close_matches

    known = run[0].row
    for gate in gates:
        if gate.metric not in known:
            near = ", ".join(get_close_matches(gate.metric, known, n=3, cutoff=0.0))
            raise UsageError(f"--fail-on: results.csv has no column {gate.metric}; did you mean {near}?")


def show(result: "Comparison", style: Format, confidence: float, new: "list[Record]") -> None:
    """The data on stdout."""
    from specbench.show import compare_export, compare_table
    from specbench.show.fitting import draw, screen

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


def leave(result: "Comparison", confidence: float, new: "list[Record]", junit: Path | None, gha: Path | None) -> None:
    """The files that were asked for, and the job summary where GitHub Actions keeps one."""
    from specbench.show import compare_export, compare_table

    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        write(Path(place), compare_table.markdown(result, confidence), "a")
    if junit:
        write(junit, compare_export.junit(result))
    if gha:
        write(gha, compare_export.history(new))


def write(file: Path, text: str, mode: Literal["w", "a"] = "w") -> None:
    """Write or append; UsageError in one line where that is impossible."""
    try:
        with file.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from error


def conclude(result: "Comparison") -> None:
    """End with the exit code of the worst row."""
    from specbench.show.compare_table import sentence_of, summary

    if failed := result.having("REGRESSION"):
        raise RegressionError(
            f"{len(failed)} of {len(result.findings)} comparisons regressed: {sentence_of(failed[0])}"
        )
    if result.code:
        raise NotComparableError(
            f"nothing regressed, but not everything could be compared ({summary(result)}): "
            f"{sentence_of(result.unjudged[0])}; --tier or --fail-on narrows what is asked for"
        )
