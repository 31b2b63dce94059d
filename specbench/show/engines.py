"""Tables of engines, of published numbers, and of requests to servers. Rows are those of results.csv."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from specbench.judge.requests import leaning, turning
from specbench.metrics import limits_of, ratio
from specbench.presets import Preset
from specbench.results.cells import MEASURED, Agreement
from specbench.show.fitting import draw, screen, sentence
from specbench.show.table import Table, print_data
from specbench.show.tables import LABELS, Columns, named, naming
from specbench.show.text import NOTHING, Format, cell_text, heading, is_number, lookahead, one_line, over, short_dataset
from specbench.spec import BASELINE
from specbench.wording import Row, clean, counted, formatted, grouped, number_in, text_in


def engine(row: Row) -> str:
    """The name of the engine, also for a cell that ended before its engine started."""
    return text_in(row, "engine") or text_in(row, "backend") or "native"


ENGINES = Columns(
    (
        ("engine", engine), ("K", lookahead), ("tier", "tier_resolved"), ("dtype", "dtype_resolved"),
        ("threads", "threads"),
    ),
    (
        ("baseline\ntokens/s", "baseline_tokens_per_second"), ("method\ntokens/s", "tokens_per_second"),
        ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("tokens\n/ round", "tokens_per_round"),
        ("alpha", "alpha"), ("lossless", "lossless"),
    ),
)  # fmt: skip
CONDITIONS = {  # conditions that should be equal for comparing engines, in words
    "tier_resolved": "tier", "dtype_resolved": "dtype", "draft_dtype_resolved": "the draft's dtype",
    "threads": "threads", "device_name": "device", "prompts_sha256": "prompts", "max_new_tokens": "new tokens",
}  # fmt: skip
COUNTS = ("rounds", "tested", "accepted", "tokens")


def engines_table(rows: Sequence[Row]) -> Table:
    """One line per engine and lookahead, for cells that differ only in these."""
    return ENGINES.table(
        f"engines · {heading(rows)}",
        rows,
        left=1,
        keys=2,
        findings=[*ratios(rows), *differences(rows), *remarks(rows)],
        legend="every speedup is over the engine's own baseline",
    )


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """How much faster the first engine is than every other, at each common lookahead."""
    for some in grouped([row for row in rows if row["status"] in MEASURED], lookahead):
        first, *others = some
        for other in others:
            bare, drafted = (times(first, other, f"{name}tokens_per_second") for name in ("baseline_", ""))
            yield (
                f"K {lookahead(first)}: {engine(first)} decodes {bare} times as fast as {engine(other)} without "
                f"a draft and {drafted} times with it (ratios of totals)"
            )


def times(one: Row, other: Row, column: str) -> str:
    values = number_in(one, column), number_in(other, column)
    return NOTHING if None in values else formatted(ratio(values[0] or 0.0, values[1] or 0.0))


def differences(rows: Sequence[Row]) -> Iterator[str]:
    """Conditions that differ between engines, though they should not; and whether rounds are counted equally."""
    for column, words in CONDITIONS.items():
        if len({text_in(row, column) for row in rows}) > 1:
            found = dict.fromkeys(f"{engine(row)} {cell_text(row, column)}" for row in rows)
            yield f"{words} differs: {', '.join(found)}"
    for some in grouped([row for row in rows if row["status"] in MEASURED], lookahead):
        if len(some) > 1 and all(is_number(row.get(name)) for row in some for name in COUNTS):
            same = len({tuple(row[name] for name in COUNTS) for row in some}) == 1
            counted = [f"{engine(row)} {row['accepted']} of {row['tested']} in {row['rounds']} rounds" for row in some]
            # Engines start differently (a first token without a draft), so totals differ even where no prompt does.
            said = "are equal" if same else "in all, by the rounds that each engine counts"
            yield f"K {lookahead(some[0])}: accepted tokens {said}: {', '.join(counted)}"


def remarks(rows: Sequence[Row]) -> list[str]:
    """The engines' remarks on their own numbers, without duplicates."""
    found = [f"{engine(row)}: {note}" for row in rows for note in text_in(row, "engine_notes").split("; ") if note]
    return list(dict.fromkeys(found))


def agreement_lines(found: Iterable[Agreement]) -> Iterator[str]:
    """One line for every two engines on a cell."""
    for one in found:
        names = [str(cell.resolved.get("engine")) for cell in (one.one, one.other)]
        said = f"the same drafted tokens are accepted on {one.verdicts}"
        said += f", on {one.counts} as many, and which ones is not reported" if one.counts else ""
        said += f", others on {one.different}: not the same draft, or rounding decides" if one.different else ""
        spec, prompts = one.one.spec, counted(one.prompts, "prompt")
        yield (
            f"{spec.dataset}, {spec.method}, K {spec.k}: {' and '.join(names)} give equal texts on {one.equal} of "
            f"{prompts}; of these {said}"
        )


# --- published numbers ------------------------------------------------------------------------------------------------


def published_table(preset: Preset, rows: Sequence[Row]) -> Table:
    """A line for every published number and every measured cell it belongs to; without cells, only the text."""
    lines = [line for row in rows for line in _lines(preset, row)]
    words = (f"paper: {preset.paper}", f"reproduced: {preset.reproduces}", f"different: {preset.differs}")
    header = ("number", "of", "published", "measured", "deviation") if lines else ()
    return Table(f"preset {preset.name}", header, lines, left=2, keys=2, above=words)


def _lines(preset: Preset, row: Row) -> Iterator[tuple[str, ...]]:
    for published in preset.published:
        if all(_same(published[name], row, name) for name in preset.stated & set(published)):
            for name, number in published.items():
                if name not in preset.stated:
                    found = number_in(row, name)
                    away = formatted(found and found / number - 1, "+.0%")
                    yield name, _cell(preset, row), f"{number:g}", one_line(cell_text(row, name)), away


def _same(wanted: object, row: Row, name: str) -> bool:
    return number_in(row, name) == wanted if isinstance(wanted, int | float) else text_in(row, name) == wanted


def _cell(preset: Preset, row: Row) -> str:
    """The settings that distinguish the cell within its preset."""
    settings = [f"{name} {text_in(row, name)}" for name in sorted(preset.stated)]
    return one_line(", ".join([short_dataset(text_in(row, "dataset")), *settings]))


# --- requests without and with a draft --------------------------------------------------------------------------------
# Sentences and tables: the answer, both sides of every load, and goodput.

Rows = Sequence[Row]
Lines = Sequence[tuple["Side", Sequence[str]]]

ARMS = {"BASE": "baseline_", "SPEC": ""}
TIMES = {"ttft": "TTFT", "per_token": "TPOT", "per_step": "per\nstep", "latency": "end to\nend"}
POINTS = ("median", "p90", "p99")
RATES = {
    "tokens/s\nper user": "tokens_per_second_per_user",
    "tokens/s\nin all": "served_tokens_per_second",
    "requests\n/s": "served_requests_per_second",
}
UNITS = {"batch": "requests in flight", "arrivals": "requests a second"}
PAYS = {"YES": "pays", "UNCLEAR": "is unclear", "NO": "does not pay"}
OF_RATES = (
    "per user: tokens a second from the first piece of an answer to its last; in all: over whole turns, prompts and "
    "waits included"
)
OF_LIMITS = "Failed requests are within no limit. Intervals: Wilson's, and Newcombe's for the paired difference."
LEGEND = (
    "TTFT: to the first piece of an answer; TPOT: (end to end − TTFT) ÷ (tokens − 1); per step: between two pieces of "
    "the stream. With speculation a piece holds all tokens of a round, but llama.cpp's only one, so the time per step "
    "(often called ITL) grows while the time per token falls: compare TPOT."
)
NOTE = (
    "speedup: BASE ÷ SPEC in seconds per token after the first, paired by prompt, with its 95 % interval over prompts. "
    "The runs were made one after the other: what changed between them besides the draft is in no interval."
)


def print_requests(rows: Rows, limits: Mapping[str, float], style: Format) -> None:
    """Print the rows for programs, or sentences and tables for readers."""
    if print_data(rows, style):
        return
    sides, keys = [Side([row["load"]], name, row, prefix) for row in rows for name, prefix in ARMS.items()], ["load"]
    tables = [speedups(rows), latencies(sides, keys), *([goodputs(sides, keys, limits)] if limits else [])]
    loads = [(row["concurrency"], row["leaning"]) for row in rows if row["concurrency"] is not None]
    lines = [*map(sentence_of, rows), *turning_said(loads), texts_said(rows)]
    if style == "md":
        typer.echo("\n\n".join([*filter(None, lines), *(table.markdown() for table in tables)]))
        return
    for line in filter(None, lines):
        sentence(screen(), line)
    for table in tables:
        typer.echo()
        draw(screen(), table.drawn())


def sentence_of(row: Mapping[str, Any]) -> str:
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


def turning_said(loads: Sequence[tuple[float, str]], unit: str = "requests in flight") -> list[str]:
    """At which loads speculation pays, and from which on no longer; empty unless several were measured."""
    if len(loads) < 2:
        return []
    at = {word: [f"{load:g}" for load, leaning in loads if leaning == name] for name, word in PAYS.items()}
    said = ", ".join(f"{word} at {', '.join(found)}" for word, found in at.items() if found)
    least = turning(loads)
    end = "" if least is None else f": from {least:g} on it is not certain that it pays"
    return [f"by {unit}, speculation {said}{end}"]


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
              for column in ("tokens_per_second_per_user", "served_tokens_per_second") for arm in ARMS.values()),
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


# --- one line for every side ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a load: what names the load, the name of the side, its row, and the prefix of its columns."""

    load: Sequence[str]
    name: str
    row: Row
    prefix: str

    def text(self, column: str, form: str = "", scale: float = 1) -> str:
        """A number, or a dash for none."""
        value = number_in(self.row, self.prefix + column)
        if value is None:
            return NOTHING
        return f"{scale * value:{form}}" if form else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    def interval(self, column: str, form: str = ".2f", scale: float = 1) -> str:
        return between(self.row, self.prefix + column, form, scale)


def table_of(title: str, keys: Sequence[str], shown: Sequence[str], lines: Lines, **more: Any) -> Table:
    names = len(keys) + 1
    found = dict.fromkeys((*side.load, side.name, *texts) for side, texts in lines)  # cells may share a baseline
    return Table(title, [*keys, "arm", *shown], [[*line] for line in found], left=names, keys=names, **more)


def latencies(sides: Sequence[Side], keys: Sequence[str]) -> Table:
    shown = [(f"{label}\n{point}", f"{name}_{point}_ms") for name, label in TIMES.items() for point in POINTS]
    lines = [(side, [side.text(column) for _, column in shown]) for side in sides]
    return table_of("requests · latency in milliseconds", keys, [label for label, _ in shown], lines, legend=LEGEND)


def goodputs(sides: Sequence[Side], keys: Sequence[str], limits: Mapping[str, float]) -> Table:
    """The share of requests within all limits, how many a second, and the difference."""
    shown = ("within\nlimits", "95 %", "goodput\nrequests/s", "95 %")
    lines = [
        (side, [side.text("slo_share", ".1f", 100) + " %", side.interval("slo_share", ".1f", 100), side.text("goodput"),
                side.interval("goodput")])
        for side in sides
    ]  # fmt: skip
    findings = [
        f"{' · '.join(side.load) or 'requests within limits'}: {side.text('slo_share_difference', '+.1f', 100)} "
        f"percentage points with the draft, {side.interval('slo_share_difference', '+.1f', 100)}"
        for side in sides
        if not side.prefix
    ]
    said = ", ".join(f"{name} ≤ {1000 * most:g} ms" for name, most in limits.items())
    return table_of(f"requests · within {said}", keys, shown, lines, findings=findings, legend=OF_LIMITS)


# --- requests of a run ------------------------------------------------------------------------------------------------


def served_tables(rows: Rows) -> Iterator[Table]:
    """Throughput, latency and goodput of cells decoded by servers, the method below its baseline; empty without."""
    found = [row for row in rows if row["status"] in MEASURED and number_in(row, "served_tokens_per_second")]
    if not found:
        return
    written = any(text_in(row, "spec_config").startswith("{") for row in found)  # else the arm's name says it
    named_by = [key for key in naming(found) if key not in ("method", "k", *(() if written else ("spec_config",)))]
    keys = [LABELS.get(key, key) for key in named_by]
    sides = [side for row in found for side in sides_in(row, [named(row, key) for key in named_by])]
    lines = [(side, [side.text(column) for column in RATES.values()]) for side in sides]
    findings = [line for some in by_load(found) for line in some.said]
    yield table_of("requests · throughput", keys, list(RATES), lines, findings=findings, legend=OF_RATES)
    for limited in grouped([side for side in sides if side.row.get("slo")], lambda side: text_in(side.row, "slo")):
        yield goodputs(limited, keys, limits_of(text_in(limited[0].row, "slo")))
    yield latencies(sides, keys)


def sides_in(row: Row, names: Sequence[str]) -> Iterator[Side]:
    """The baseline of a cell, and its method."""
    yield Side(names, BASELINE, row, "baseline_")
    if row["method"] != BASELINE:
        yield Side(names, arm_of(row), row, "")


def arm_of(row: Row) -> str:
    """How a cell drafts, and its K."""
    return f"{clean(named(row, 'method'), 60)} K{named(row, 'k')}"


@dataclass(frozen=True)
class Loads:
    """Cells of one method on servers that differ in their load alone, by load: requests in flight, or a second."""

    setting: str
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        return arm_of(self.rows[0])

    @property
    def said(self) -> list[str]:
        """Where speculation pays."""
        loads = [(row[self.setting], leaning(row)) for row in self.rows]
        return [f"{self.name}: {line}" for line in turning_said(loads, UNITS[self.setting])]


def by_load(rows: Rows) -> list[Loads]:
    """The series of measured cells over several loads; empty without servers."""
    found = [row for row in rows if number_in(row, "served_tokens_per_second") and row["method"] != BASELINE]
    return [
        Loads(setting, sorted(some, key=lambda row: float(row[setting])))
        for setting in UNITS
        for group in over(found, setting)
        for some in grouped(group, lambda row: (row["method"], lookahead(row)))
        if all(number_in(row, setting) for row in some)
    ]
