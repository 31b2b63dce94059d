"""The body of `specbench compare`: from runs and a policy to tables, files and an exit code. Loads no torch."""

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import typer

from specbench.errors import NotComparableError, RegressionError, UsageError
from specbench.files import check_regular, replace_text
from specbench.jobs.predict import read_given, rows_with, tell
from specbench.judge import compare as judge
from specbench.judge.compare import Comparison, Finding, Policy
from specbench.judge.matching import Record, records_of
from specbench.judge.predictions import profile_of_run
from specbench.judge.settling import with_command
from specbench.judge.significance import Criterion
from specbench.judge.verdict import Recommendation, pays, recommend
from specbench.results.documents import failed_audits, fault_of, iso_time
from specbench.results.named_runs import DESCRIPTION, TABLE, read_json, runs_in, short_name
from specbench.results.numbers import NUMBERS
from specbench.results.reading import Run, rows_of
from specbench.results.samples import by_prompt, length_of
from specbench.results.statistics import bounds
from specbench.show import compare as shown
from specbench.show.fitting import draw, screen, sentence
from specbench.show.table import print_records
from specbench.show.text import Format
from specbench.show.verdict import lead, paragraphs, together
from specbench.wording import clean, clean_path, counted, formatted, interval_text, text_in

CompareStyle = Literal["table", "md", "json", "junit", "gha"]

# Other tools' names for columns of results.csv. A gate takes the first that BASE has a number in.
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
LEAST = -1 + 1e-9  # relative change of a number that fell to zero, kept above −1 so that its logarithm exists
PIPED = 120  # columns if stdout is not a terminal


@dataclass(frozen=True)
class Output:
    """The format of the comparison on stdout, and the files it is also written to."""

    style: CompareStyle
    quiet: bool
    junit: Path | None
    gha: Path | None


def start_compare(bases: Sequence[Path], news: Sequence[Path], policy: Policy, output: Output) -> None:
    """Compare the i-th of `news` with the i-th of `bases`, or the last; raises the error for the exit code."""
    if len(bases) > len(news):
        raise UsageError("a --base-rerun belongs to a second NEW: give no more runs of BASE than of NEW")
    read = read_given([*bases, *news])
    records = list(map(records_of, read))
    old, new = records[: len(bases)], records[len(bases) :]
    policy = replace(policy, gates=tuple(dict.fromkeys(named(gate, old[0]) for gate in policy.gates)))
    result = judge.compare_runs(old, new, policy)
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        write(Path(place), shown.markdown(result, policy.confidence), append)
    if output.junit:
        write(output.junit, shown.junit(result))
    if output.gha:
        write(output.gha, shown.history(new[0]))
    if not output.quiet:
        tell(read)
        show(result, output.style, policy.confidence, new[0])
    conclude(result)


def policy_of(fail_on: list[str], checks: list[str], margin: float | None, level: float) -> Policy:
    """The policy from the options. UsageError if they contradict each other."""
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
    """Parse `speedup<-5%` (worse: more than 5 % lower) or `c>+10%` (worse: more than 10 % higher)."""
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
    """Resolve a gate to a column of BASE. UsageError if missing: a mistyped gate must not pass."""
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


def show(result: Comparison, style: CompareStyle, confidence: float, new: list[Record]) -> None:
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


def append(file: Path, text: str) -> None:
    """Append to a file that others write as well. OSError for a pipe or a device, which might block."""
    if file.exists():
        check_regular(file)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(text)


def write(file: Path, text: str, how: Callable[[Path, str], None] = replace_text) -> None:
    """Replace a file or append to it. UsageError in one line if that fails."""
    try:
        how(file, text)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from error


def conclude(result: Comparison) -> None:
    """Raise the error of the worst row, if any."""
    if failed := result.having("REGRESSION"):
        worst = max(failed, key=how_bad)
        more = f"; and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise RegressionError(
            f"{len(failed)} of {len(result.findings)} comparisons regressed, worst: {shown.sentence_of(worst)}{more}"
        )
    if result.code:
        raise NotComparableError(
            f"nothing regressed, but not everything could be compared ({shown.summary(result)}): "
            f"{shown.sentence_of(result.unjudged[0])}; narrow the checks with --checks or --fail-on"
        )


def how_bad(one: Finding) -> float:
    """The size of a change on the log scale; findings without a number rank lowest."""
    return -1.0 if one.change is None else abs(math.log1p(max(one.change, LEAST)))


# --- verdict ----------------------------------------------------------------------------------------------------------
# The body of `specbench verdict`: from finished runs to sentences. Loads no torch.

VerdictStyle = Literal["table", "json", "md"]
NOTHING = "nothing to judge: no cell with a draft was measured"
VERDICT_NEEDS = ("status", "target", "dataset", "method", "k")


def start_verdict(
    runs: Sequence[Path], style: VerdictStyle, explain: bool, judges: bool = False, least: float | None = None
) -> None:
    """Print the answers of runs together, or with `explain` each run with its tables and notes.

    With `judges`, or a least speedup, end with the exit code of the worst answer.
    """
    if least is not None and (judges or not 0 < least < math.inf):
        raise UsageError(
            "--fail-under takes a speedup such as 1.1, and sets the exit code itself: leave out --exit-code"
        )
    read = read_given(runs)
    rows = [(run, [row for _, row in rows_with(run, VERDICT_NEEDS)]) for run in read]
    tell(read)
    found = recommend([row for run, some in rows for row in with_command(some, *verdict_name(run))])
    if style == "json":
        typer.echo(json.dumps(list(map(asdict, found)), indent=2))
    elif explain:
        for run in read:
            explained(run, style)
    else:
        show_verdict(found, style)
    if judges or least is not None:
        conclude_verdict(found, least)
    elif not found:
        typer.echo(NOTHING, err=True)


def conclude_verdict(found: Sequence[Recommendation], least: float | None) -> None:
    """Raise RegressionError for a NO or a speedup below `least`, NotComparableError for an open answer."""
    if not found:
        raise NotComparableError(NOTHING)
    below = "speculative decoding does not pay" if least is None else f"the speedup is below {least:g}×"
    enough = "speculative decoding pays" if least is None else f"the speedup is at least {least:g}×"
    for error, said, answer in (
        (RegressionError, below, False),
        (NotComparableError, f"it is not certain that {enough}", None),
    ):
        if those := [one for one in found if pays(one, least) is answer]:
            more = f"; and {len(those) - 1} more" if len(those) > 1 else ""
            raise error(f"{said} on {clean(those[0].dataset)}: {lead(those[0])}{more}")


def verdict_name(run: Run) -> tuple[str, str]:
    """The command line of a run, "" if unknown, and its name in commands."""
    return text_in(run.description, "command"), short_name(run.path)


def explained(run: Run, style: VerdictStyle) -> None:
    """Print a run as after its measurement, with everything that explains it."""
    from specbench.show.run_output import Shown, print_run

    rows = [cell.row() for cell in run.judged]
    print_run(rows, style, screen(), Shown.of(run.judged, *verdict_name(run), explain=True))


def show_verdict(found: Sequence[Recommendation], style: VerdictStyle) -> None:
    """Print the answers, each with its details."""
    if style == "table":
        for line in together(found) if found else []:
            sentence(screen(), line)
        return
    for paragraph in paragraphs(found):
        typer.echo(paragraph)


# --- runs -------------------------------------------------------------------------------------------------------------
# The body of `specbench list`: the runs of a folder, each with its name in commands. Loads no torch.

NONE = "specbench run makes one"


def start_list(parent: Path, style: Format) -> None:
    """Print the runs, the latest last."""
    found = [described(run) for run in runs_in(parent)]
    if not found:
        raise UsageError(f"no runs in {clean_path(parent)}: {NONE}")
    shown = [{name: value for name, value in row.items() if name != "folder"} for row in found]
    print_records(found, {f"runs in {clean_path(parent)}, the latest last": shown}, style)


def described(run: Path) -> dict[str, Any]:
    """A run in one line: name, start, settings and answers."""
    description, rows = read_json(run / DESCRIPTION), rows_of(run / TABLE)
    specs = description.get("specs")
    specs = [spec for spec in specs if isinstance(spec, dict)] if isinstance(specs, list) else []
    failed = failed_audits(run.resolve().parent)
    measured = [row for row in rows if row.get("status") in ("ok", "partial") and not fault_of(row, failed)]
    return {
        "name": clean(Path(short_name(run)).name, 200),
        "answer": several(one.answer for one in recommend(measured)) or "none yet",
        "began": iso_time(text_in(description, "started"))[:16].replace("T", " "),
        "pair": several(f"{spec.get('target')} ← {spec.get('draft') or 'no draft'}" for spec in specs),
        "data": several(str(spec.get("dataset", "")).rsplit("/", 1)[-1] for spec in specs),
        "methods": several(f"{spec.get('method')}" for spec in specs),
        "K": several(f"{spec.get('k')}" for spec in specs),
        "cells": f"{len(measured)} of {len(specs)}",
        "prompts": several(row.get("prompts", "") for row in measured),
        "folder": clean_path(run),
    }


def several(words: Any) -> str:
    """The common value of cells, or their first few values."""
    found = list(dict.fromkeys(clean(word, 100) for word in words))
    return ", ".join(found[:3]) + f" and {len(found) - 3} more" * (len(found) > 3)


# --- profile ----------------------------------------------------------------------------------------------------------
# The body of `specbench profile`: from a finished run to a file. Loads no torch.

PROFILE_NEEDS = ("status", "target", "dataset", "method", "k")


def start_profile(run: Path, cell: str, output: Path | None, engine: str = "") -> None:
    """Write or print the profile of a cell of the run, or print what makes an engine accept as much,
    with the acceptance length and its interval as a comment of the shell."""
    (read,) = read_given([run])
    rows = [row for _, row in rows_with(read, PROFILE_NEEDS)]
    tell([read])
    found, about = profile_of_run(rows, cell)
    samples = next(one.samples for one in read.judged if one.spec.key == about["cell"])
    length = bounds("al", length_of(samples))
    if engine:
        if engine not in found.forced:
            raise UsageError(f"unknown engine {clean(engine, 60)!r}: choose one of {', '.join(found.forced)}")
        al, *interval = length.values()
        over = f"{interval_text(*interval)}, 95 % over {counted(len(by_prompt(samples)), 'independent draw')}"
        typer.echo(f"{found.forced[engine]}  # AL {formatted(al)} {over}, K = {len(found.conditional)}")
        return
    about |= {name: value and round(value, 4) for name, value in length.items()}
    if output is None:
        typer.echo(found.text(**about), nl=False)
        return
    try:
        replace_text(output, found.text(**about))
    except OSError as error:
        raise UsageError(f"cannot write {clean_path(output)}: {error.strerror}; choose another --output") from None
    typer.echo(f"profile: {clean_path(output)}", err=True)
