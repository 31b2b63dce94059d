"""The body of `specbench recommend`.

Every candidate is measured once at its largest K, on a few prompts; smaller K are predicted from it. Those that could
win are measured on all prompts against one baseline, and judged. What wins is audited, and dropped if it fails.
"""

import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import typer
from rich.console import Console

from specbench.audit.certificate import PAGE, headline
from specbench.backends.engines import arms
from specbench.errors import CellsFailedError, SpecbenchError, UsageError
from specbench.jobs import run
from specbench.jobs.audit import Wanted, audited
from specbench.jobs.output import Output, say
from specbench.jobs.resume import NOTHING, Typed, record_rest
from specbench.judge.candidates import (
    Choice,
    best_choices,
    best_ks,
    contenders,
    flaw,
    lookaheads,
    name_of,
    regrets,
    vllm_schedule,
    why_not,
)
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.measure.fit import draft_memory
from specbench.models.checkpoints.names import GGUF, drafts_of, resolve
from specbench.results.cells import raise_for_status
from specbench.results.named_runs import short_name
from specbench.results.reading import audited_cells, read_run
from specbench.results.statistics import ENOUGH, FEWEST, Interval, bounds
from specbench.show.engines import turning_said
from specbench.show.run_output import regret_lines, rendered
from specbench.show.table import print_markdown, print_table
from specbench.show.verdict import together, topics_of
from specbench.spec import RunSpec
from specbench.wording import Row, formatted, grouped, interval_text, number_in, text_in

LARGEST = 8  # K of the first run
SCOUTS, LEAST = 8, 4  # prompts of the first run, or a turn of a larger load, and of the second one at least
REQUESTS, SHARE = 40, 0.25  # of an audit, and the part of the time that is kept for audits
SHORTEST, QUICK = 3, 60  # minutes of an audit, at least; seconds that the 20 prompts of an answer may always take
LOAD = ("dataset", "context", "temperature", "batch", "arrivals")
AGAIN = "measure again with another model, draft, engine version or GPU, and when your traffic changes"
SELF = ("ngram", "ngram-mod", "suffix")  # arms of servers that draft from the text
# Settings that an audit chooses itself.
OWN = {"limit", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "eta", "ignore_eos", "tier", "batch",
       "arrivals", "burstiness", "slo", "warmup", "repeat", "until_ci"}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """Minutes that it may take, where it prints, and the first run of an interrupted one that it continues."""

    minutes: float
    output: Output
    before: Path | None = None
    typed: Typed = NOTHING

    def say(self, line: str) -> None:
        say(Console(stderr=True, quiet=self.output.quiet), [line])

    def recorded(self, specs: Sequence[RunSpec], before: Path | None = None) -> run.Outcome:
        """A new run, or the rest of an earlier one; raises its interrupt."""
        watch = run.Terminal(self.output)
        done = record_rest(before, watch, typed=self.typed) if before else run.record(specs, self.output.parent, watch)
        run.say_where(done, self.output)
        return replace(done, cells=audited_cells(done.cells, done.path))

    def second(self, specs: Sequence[RunSpec]) -> Path | None:
        """The second run of the recommendation that is continued, if it had begun: a later one of the same cells."""
        if self.before is None:
            return None
        began = self.before.name.partition("_")[0]  # to the second, in which both may have begun
        for path in sorted(self.before.parent.iterdir()):
            with suppress(SpecbenchError):
                later = path.name >= began and path.name != self.before.name
                if later and unlimited(read_run(path).specs) == unlimited(specs):
                    return path
        return None


def unlimited(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """The cells without their number of prompts."""
    return [one.with_(limit=None) for one in specs]


def candidates(settings: dict[str, Any], draft: str | None) -> dict[str, Any]:
    """The settings with the candidates of their engine, unless some are named: those that servers have; and K."""
    if not arms.own_words(settings.get("spec_config"), settings.get("spec_args")):
        settings = {"k": LARGEST, **settings}
    if engine := arms.ENGINES.get(str(settings.get("backend"))):
        named = [name for name in ("draft-model", *SELF) if name in engine.named and (draft or name in SELF)]
        axis, given = {"spec_config": named}, {"spec_config", "spec_args", "method"} & {*settings}
    else:
        # not suffix: its rounds differ in shape, so that no cell of the run would be compiled, the baseline's neither
        axis, given = {"method": ["chain"] * bool(draft) + ["prompt-lookup"]}, {"method"} & {*settings}
    return settings if given else {**settings, **axis}


def start_recommend(cells: Sequence[RunSpec], setup: Setup) -> None:
    """Measure twice and audit; print the candidates, the answer for every load, and the words that deploy it."""
    if any(cell.acceptance or not cell.k or cell.backend == "openai" for cell in cells):
        raise UsageError("recommend compares drafts that it starts: leave out --acceptance, --url, --k 0 and baseline")
    began, output = time.monotonic(), setup.output
    most = [max(SCOUTS, 2 * cell.batch) for cell in cells]  # a turn at least
    scouts = [cell.with_(limit=min(cell.limit or few, few)) for cell, few in zip(cells, most, strict=True)]
    if setup.before and list(read_run(setup.before).specs) != scouts:
        raise UsageError(f"--resume {setup.before}: not the first run of this command: repeat it with its options")
    named = {name_of(cell.model_dump()): cell for cell in cells}
    drafts = {name: draft_memory(cell) for name, cell in named.items()}
    first = setup.recorded(scouts, setup.before)
    loads = grouped([cell.row() for cell in first.cells], load_of)
    again = most_promising(cells, first, loads, setup)
    before, spent = setup.second(again), time.monotonic() - began
    if spent > (1 - SHARE) * 60 * setup.minutes:
        short = "the second takes as few prompts as an answer needs"
        setup.say(f"the first run took {spent / 60:.1f} min of --minutes {setup.minutes:g}: {short}")
    final = setup.recorded([] if before else fitting(again, first, spent, setup.minutes), before)
    rows, certificates = after_audits(final, began + 60 * setup.minutes, setup)
    costs = {(*load_of(row), name_of(row)): over for row, _, _, over in regrets(final.cells)}
    lines = [{**line, "memory": drafts[line["candidate"]]} for load in loads for line in choices(load, rows, costs)]
    if output.style not in ("table", "md"):
        typer.echo(rendered(lines, output.style), nl=False)
        return
    (print_markdown if output.style == "md" else print_table)("candidates", shown(lines))
    answers = recommend(with_command(rows, final.about.command, short_name(final.path)))
    memory = [f"memory of {name}: {taken}" for name, taken in drafts.items() if taken]
    found = [*together(answers), *ends_of(answers), *regret_lines(final.cells), *certificates]
    typer.echo("\n".join([*memory, "", *found, ""]))
    for answer, topic in zip(answers, topics_of(answers), strict=True):
        heading = f"deploy ({topic}):" if len(answers) > 1 else "deploy:"
        typer.echo("\n  ".join([heading, *deploy(answer, rows)]))
    typer.echo(AGAIN)
    if len(other := drafts_of(cells[0].target)) == 1:
        setup.say(f"public drafts of {next(iter(other))}: specbench drafts {cells[0].target}")


def most_promising(
    cells: Sequence[RunSpec], first: run.Outcome, loads: Sequence[Sequence[Row]], setup: Setup
) -> list[RunSpec]:
    """The cells of those that could win under their load, with the K predicted to be best, and smaller ones."""
    best = {(load_of(one.row), one.name, one.k) for load in loads for one in contenders(best_choices(load))}
    if not best:
        raise_for_status(first.cells)
        flaws = dict.fromkeys(flaw(row) for load in loads for row in load)
        raise CellsFailedError(f"no candidate was measured: {'; '.join(flaws)}")
    setup.say("measuring again: " + ", ".join(sorted({f"{name} (K = {k})" for _, name, k in best})))
    rows = {cell.spec.with_(limit=None): cell.row() for cell in first.cells}
    again = list[RunSpec]()
    for cell in cells:
        row = rows[cell.with_(limit=None)]
        again += [cell.with_(k=k) for load, name, k in sorted(best) if (load, name) == (load_of(row), name_of(row))]
    return list(dict.fromkeys(again))


def fitting(again: Sequence[RunSpec], first: run.Outcome, spent: float, minutes: float) -> list[RunSpec]:
    """The cells on as many prompts as fit into the time: loads take the same, by the seconds of a prompt under each
    in the first run, whose other seconds (to start and to compile) are spent again. A load has one baseline."""
    arms_of: dict[tuple[str, ...], list[list[float]]] = {}  # by load and arm, the seconds of prompts with all turns
    for cell in first.cells:
        timed = arms_of.setdefault(load_of(cell.spec.model_dump()), [])
        prompts = grouped(cell.samples, lambda one: one.prompt)
        for arm in [] if not prompts else ["method"] if timed else ["baseline", "method"]:
            traces = [[getattr(one, arm) for one in some] for some in prompts]
            timed.append([math.fsum(one.seconds + one.prefill_seconds for one in some) for some in traces])
    used = math.fsum(second for some in arms_of.values() for seconds in some for second in seconds)
    number = Counter(load_of(one.model_dump()) for one in again)
    each = ((1 - SHARE) * 60 * minutes - spent - max(spent - used, 0.0)) / len(number)
    found = []
    for one in again:
        load = load_of(one.model_dump())
        known = [mean(seconds) for seconds in arms_of.get(load, [])]
        prompt = (1 + number[load]) * mean(known) if known else math.inf  # seconds of one
        # an interval is over turns of a batch
        least = FEWEST * one.batch if one.batch > 1 else max(min(ENOUGH, int(QUICK / prompt)), LEAST)
        fits = max(int(each / prompt), least)
        found.append(one.with_(limit=min(one.limit or fits, fits)))
    return found


def after_audits(final: run.Outcome, ends: float, setup: Setup) -> tuple[list[Row], list[str]]:
    """The rows, with drafts that failed a short audit marked so, and a line on every audit.

    The winner of every load is audited until one passes; a fault is a draft's, whatever its K and load.
    """
    rows: list[Row] = [cell.row() for cell in final.cells]
    lines, known = list[str](), set[str]()
    while True:
        ahead = [row for answer in recommend(rows) if (row := winner(answer, rows)) and name_of(row) not in known]
        if not ahead:
            return rows, lines
        name, spec = name_of(ahead[0]), final.cells[rows.index(ahead[0])].spec
        known.add(name)
        setup.say(f"auditing {name}, with up to {REQUESTS} requests")
        chosen = {key: value for key, value in spec.model_dump(exclude=OWN).items() if value}
        left = max((ends - time.monotonic()) / 60, SHORTEST)
        try:
            made, place = audited(Wanted(chosen, requests=REQUESTS, minutes=left), replace(setup.output, quiet=True))
        except SpecbenchError as error:
            lines.append(f"{name} was not audited: {error}")
            continue
        found = "; ".join(headline(made)[: 2 + bool(made.left)])
        lines.append(f"audit of {name} (K = {spec.k}): {found}; see {place / PAGE}")
        if made.faults:
            failed = {"status": "failed", "error": f"it fails the audit ({made.faults[0].cell})"}
            rows = [{**row, **failed} if name_of(row) == name else row for row in rows]


def load_of(row: Row) -> tuple[str, ...]:
    return tuple(text_in(row, name) for name in LOAD)


def shown(lines: Sequence[Row]) -> list[dict[str, Any]]:
    """The candidates for a screen: a value with its bounds is one text, and what is the same for all is left out.

    Regret is left to `regret_lines`, which name the choice that was better, and memory to lines of its own.
    """
    hidden = {name for name in lines[0] if name.endswith(("_low", "_high"))} | {"regret", "memory"}
    hidden |= {name for name in LOAD if len({str(line[name]) for line in lines}) == 1}
    hidden |= set() if any(line["note"] for line in lines) else {"note"}
    made = []
    for line in lines:
        texts = {name: "" if line[name] is None else
                 f"{formatted(line[name])} {interval_text(line[f'{name}_low'], line[f'{name}_high'])}"
                 for name in ("predicted", "measured")}  # fmt: skip
        made.append({name: value for name, value in line.items() if name not in hidden} | texts)
    return made


def ends_of(answers: Sequence[Recommendation]) -> list[str]:
    """From how many requests in flight on speculation does not pay, for every other setting of the load."""
    measured = [one for one in answers if one.speedup is not None]
    loads = grouped(measured, lambda one: (one.dataset, one.context, one.temperature, one.arrivals))
    found = [turning_said([(one.batch, one.leaning or one.answer) for one in some]) for some in loads]
    return list(dict.fromkeys(line for lines in found for line in lines))


def choices(
    load: Sequence[Row], measured: Sequence[Row], costs: Mapping[tuple[str, ...], Interval]
) -> Iterator[dict[str, Any]]:
    """The candidates under one load: what was predicted, what was then measured, or why it was not."""
    found, done = best_choices(load), {(load_of(row), name_of(row), row["k"]): row for row in measured}
    halves = [one for row in load for one in lookaheads(row) if (load_of(row), one.name, one.k) in done]
    failed = [Choice(row, row["k"], math.nan, 0, 0) for row in load if name_of(row) not in {one.name for one in found}]
    for choice in (*found, *(one for one in halves if one not in found), *failed):
        again = done.get((load_of(choice.row), choice.name, choice.k))
        wrong = flaw(again or choice.row)
        numbers = (number_in(again if again and not wrong else {}, f"speedup{end}") for end in ("", "_low", "_high"))
        limits = (choice.low, choice.high) if choice.low < choice.high else (math.nan, math.nan)  # else unknown
        yield {
            **{name: choice.row.get(name) for name in LOAD}, "candidate": choice.name, "K": choice.k,
            **bounds("predicted", Interval(choice.speedup, *limits)),
            **bounds("measured", Interval(*(math.nan if one is None else one for one in numbers))),
            **bounds("regret", costs.get((*load_of(choice.row), choice.name), Interval(math.nan, math.nan, math.nan))),
            "note": wrong or ("" if again else why_not(choice, found)),
        }  # fmt: skip


def winner(answer: Recommendation, rows: Sequence[Row]) -> Row | None:
    """The row of the recommended draft; None if the engine is best without one."""
    if "NO" in (answer.answer, answer.leaning) or (answer.speedup or 0) <= 1:
        return None
    return next((row for row in rows if row["speedup"] == answer.speedup and row["k"] == answer.k), None)


def deploy(answer: Recommendation, rows: Sequence[Row]) -> list[str]:
    """The words that start each engine with the recommended draft; for vLLM K by batch where that differs."""
    if (row := winner(answer, rows)) is None:
        return ["the engine without a draft"]
    served, named = text_in(row, "backend"), ("target", "draft", "method", "k", "schedule", "spec_config", "spec_args")
    spec = RunSpec(**{name: row[name] for name in named if row.get(name)})
    place = resolve(spec.draft).place if spec.draft else None  # engines do not know our aliases
    converted = {} if not place or place.endswith(GGUF) else {"llama-server": f"DRAFT{GGUF}"}
    spec = spec.with_(draft=place)
    arm, more = spec.spec_config or arms.METHODS.get(spec.method, ""), arms.split(spec.spec_args)
    engines = [one for one in ([served] if served in arms.ENGINES else arms.ENGINES) if arm in arms.ENGINES[one].named]
    engines = engines if spec.schedule == "constant" else []
    words = {one: [*arms.filled(spec.with_(backend=one), arm, converted.get(one, place)), *more] for one in engines}
    if arms.passed_through(spec):
        words = {served: [*([arms.CONFIG, spec.spec_config] if spec.spec_config else []), *more]}
    lines = [f"{one}: {shlex.join(some)}" for one, some in words.items()]
    if "vllm-serve" in engines:
        other = {} if more else arms.elsewhere(spec, arm)
        lines += [
            f"{one}: {text}" for one, text in other.items() if served not in arms.ENGINES or one.startswith("NIM")
        ]
    schedule = vllm_schedule(best_ks([one for one in rows if name_of(one) == name_of(row)]))
    if len(schedule.get("num_speculative_tokens_per_batch_size", [])) > 1 and "vllm-serve" in engines:
        config = json.dumps({**arms.config_in(words["vllm-serve"]), **schedule})
        lines.append(f"vllm-serve, K by requests in flight: {shlex.join([arms.CONFIG, config])}")
    unsure = ["once that is certain:"] if answer.answer == "UNCLEAR" else []
    return [*unsure, *lines] if lines else ["no server that specbench knows has this method"]
