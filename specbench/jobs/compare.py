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
from specbench.jobs.given_runs import read_given, tell
from specbench.judge import compare as judge
from specbench.judge.compare import Comparison, Finding, Policy
from specbench.judge.matching import Record, records_of
from specbench.judge.significance import Criterion
from specbench.replacing import replace_text
from specbench.results.numbers import NUMBERS
from specbench.show import compare as shown
from specbench.show.fitting import draw, screen
from specbench.wording import clean

Style = Literal["table", "md", "json", "junit", "gha"]

# What other tools call the columns of results.csv. Of several a gate takes the first that BASE has a number in.
SYNONYMS = {
    "speedup": "speed_up speedup_ratio",
    "tokens_per_second": "throughput output_throughput tps tok/s tok_s toks/s token/s tokens/s tokens_per_sec",
    "ttft_ms": "ttft time_to_first_token",
    "latency_median_ms": "latency request_latency e2e_latency e2el",
    "per_token_median_ms": "latency tpot itl time_per_output_token inter_token_latency",
    "accepted_per_drafted": "acceptance acceptance_rate accept_rate draft_acceptance_rate",
    "tokens_per_round": "acceptance_length mean_acceptance_length accept_length tau block_efficiency tokens_per_pass",
}
USUAL = ("speedup", "tokens_per_second", "accepted_per_drafted", "tokens_per_round")
GATE = re.compile(
    r"(?P<metric>[a-z][a-z0-9_/ -]*?)\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d{1,6}(?:\.\d{1,6})?)\s*%",
    re.ASCII | re.IGNORECASE,
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
    read = read_given([*bases, *news])
    records = list(map(records_of, read))
    old, new = records[: len(bases)], records[len(bases) :]
    policy = replace(policy, gates=tuple(dict.fromkeys(named(gate, old[0]) for gate in policy.gates)))
    result = judge.compare_runs(old, new, policy)
    leave(result, policy.confidence, new[0], output.junit, output.gha)
    if not output.quiet:
        tell(read)
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
    return Criterion(
        re.sub("[ -]+", "_", match["metric"].lower()), -1 if match["sign"] == "<" else 1, abs(percent) / 100
    )


def named(gate: Criterion, run: list[Record]) -> Criterion:
    """The gate by a column of BASE; UsageError where it has none that is called so: a mistyped gate must not pass."""
    called = [column for column, words in SYNONYMS.items() if gate.metric in words.split()]
    meant = [gate.metric, f"{gate.metric}_ms", *called]
    known = [name for name in meant if name in run[0].row]
    if not known:
        words = {word: column for column, words in SYNONYMS.items() for word in words.split()}
        words |= {name: name for name in NUMBERS if name in run[0].row}
        near = [words[word] for word in get_close_matches(gate.metric, words, n=3)]
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"try {', '.join(USUAL)}"
        raise UsageError(f"--fail-on: results.csv has no column {clean(gate.metric)}; {hint}")
    filled = [name for name in known if any(record[name] for record in run)]
    return replace(gate, metric=(filled or known)[0])


def show(result: Comparison, style: Style, confidence: float, new: list[Record]) -> None:
    """The data on stdout."""
    if style == "table":
        draw(screen(PIPED), shown.table(result, confidence))
        return
    printed = {
        "md": lambda: shown.markdown(result, confidence),
        "json": lambda: shown.as_json(result),
        "junit": lambda: shown.junit(result),
        "gha": lambda: shown.history(new),
    }
    typer.echo(printed[style](), nl=False)


def leave(result: Comparison, confidence: float, new: list[Record], junit: Path | None, gha: Path | None) -> None:
    """The files that were asked for, and the job summary where GitHub Actions keeps one."""
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        write(Path(place), shown.markdown(result, confidence), append)
    if junit:
        write(junit, shown.junit(result))
    if gha:
        write(gha, shown.history(new))


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
            f"{len(failed)} of {len(result.findings)} comparisons regressed, worst: {shown.sentence_of(worst)}{more}"
        )
    if result.code:
        raise NotComparableError(
            f"nothing regressed, but not everything could be compared ({shown.summary(result)}): "
            f"{shown.sentence_of(result.unjudged[0])}; --checks or --fail-on narrows what is asked for"
        )


def how_bad(one: Finding) -> float:
    """How far a number fell or rose, on the log scale; a finding without a number is less than any."""
    return -1.0 if one.change is None else abs(math.log1p(max(one.change, LEAST)))
