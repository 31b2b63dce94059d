"""Tables that explain the numbers of a run: cells side by side, levels, waterfall, categories, predicted acceptance.

Rows are those of results.csv; of categories also those of categories.csv, of beliefs those of `Cell.belief_rows`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from specbench.judge.advice import drafts_trees
from specbench.judge.candidates import BestK, best_ks, vllm_schedule
from specbench.show.fitting import Fitted
from specbench.show.table import Table, unbroken
from specbench.show.tables import CellText, Columns, depth, fastest, is_lossy
from specbench.show.text import (
    NOTHING,
    caveats,
    cell_name,
    cell_text,
    heading,
    is_absent,
    is_number,
    lookahead,
    markdown_table,
    method_name,
    name_among,
    one_line,
    paragraphs,
    shared_settings,
    short_dataset,
    varying,
)
from specbench.wording import Row, clean, formatted, literal, number_in, ranges, text_in

Line = tuple[str, str, str]  # label, column, explanation
ROWS: tuple[Line, ...] = (
    ("prompts", "prompts", "decoded by both arms"),
    ("tokens/s baseline", "baseline_tokens_per_second", "decode only, same loop without a draft"),
    ("tokens/s method", "tokens_per_second", "decode only"),
    ("speedup", "speedup", "measured: total baseline ÷ total method time"),
    ("  95 % interval", "speedup_interval", "over prompts (jackknife)"),
    ("  predicted", "speedup_predicted", "(1−α^(K+1)) / ((1−α)(Kc+1))"),
    ("  calibrated", "speedup_calibrated", "tokens ÷ (Kc + v + overhead)"),
    ("  end to end", "speedup_end_to_end", "with prefill"),
    ("  runs elsewhere", "speedup_elsewhere", "if what the draft learns were computed elsewhere"),
    ("  95 % interval", "speedup_elsewhere_interval", "as that of the speedup"),
    ("  time in updates", "update_share", "share of the method's time in which its draft was changed"),
    ("alpha", "alpha", "mean chance of acceptance per tested token"),
    ("  95 % interval", "alpha_interval", "over prompts (jackknife)"),
    ("accepted/tested", "alpha_tested", "agrees with alpha, but for block verification and lossy rules"),
    ("accepted/drafted", "accepted_per_drafted", "what many tools call acceptance rate"),
    ("drafts found", "draft_hit_rate", "rounds that drafted anything ÷ rounds"),
    ("tokens per round", "tokens_per_round", "correction or bonus included"),
    ("c", "c", "one drafted token ÷ one baseline step"),
    ("  of a round", "c_round", "all that a round drafts; of a head that drafts in one pass, that pass"),
    ("nodes per round", "nodes_per_round", "drafted tokens in one verify pass; a tree has more than levels"),
    ("v", "v", "verify pass over all drafted nodes ÷ one-token pass of the target"),
    ("overhead", "overhead", "rest of a round ÷ one baseline step"),
    ("lossless", "lossless", "greedy output equals the baseline's, up to rounding (not compared if sampled)"),
    ("  outputs identical", "prompts_identical", "token for token; in the others two tokens were nearly tied"),
    ("  distance", "law_distance", "not lossless: its output differs from the target's by so much per token (0 to 1)"),
)
WAITS: tuple[Line, ...] = (  # last in a report, if known
    ("ms per token", "per_token_median_ms", "decode time of a prompt ÷ its new tokens, median over prompts"),
    ("  95th percentile", "per_token_p95_ms", "over prompts"),
    ("  baseline", "baseline_per_token_median_ms", "median of the baseline"),
    ("first token, ms", "ttft_median_ms", "from a request to the first piece of its answer, median"),
    ("  95th percentile", "ttft_p95_ms", "over requests"),
    ("whole answer, ms", "latency_median_ms", "from when a request came to the last piece of its answer, median"),
    ("  95th percentile", "latency_p95_ms", "over requests"),
    ("  99th percentile", "latency_p99_ms", "over requests"),
    ("tokens/s served", "served_tokens_per_second", "of all requests of a turn, prompts and waits included"),
    ("within limits", "slo_share", "share of the requests that meet every limit of --slo"),
    ("goodput", "goodput", "requests a second that do"),
    ("prompt read, ms", "prefill_median_ms", "median over prompts; the first token comes one round after it"),
    ("  95th percentile", "prefill_p95_ms", "over prompts"),
    ("GB of device", "peak_memory_device", "tensors at most while the method decoded, all models included"),
    ("GB of process", "peak_memory_host", "resident at most while the method decoded"),
)
OF_SOME_ROWS: Mapping[str, Callable[[Row], bool]] = {  # lines that are shown only if some cell has them
    **dict.fromkeys(
        ("speedup_elsewhere", "speedup_elsewhere_interval", "update_share"),
        lambda row: number_in(row, "update_share") is not None,
    ),
    "c_round": lambda row: bool(number_in(row, "drafted_per_round")),
    "nodes_per_round": drafts_trees,
    "law_distance": lambda row: (number_in(row, "law_distance") or 0) > 0 or is_lossy(row),
}


def lines_of(rows: Sequence[Row]) -> list[Line]:
    """The lines of a table of these cells."""
    return [one for one in ROWS if one[1] not in OF_SOME_ROWS or any(map(OF_SOME_ROWS[one[1]], rows))]


def report_lines(rows: Sequence[Row]) -> list[Line]:
    """These lines, plus latency and resources if known."""
    return [*lines_of(rows), *(line for line in WAITS if any(number_in(row, line[1]) is not None for row in rows))]


@dataclass(frozen=True)
class SideBySide:
    """A few cells as columns, with a number per line; explanations are shown on a terminal only."""

    rows: Sequence[Row]

    def drawn(self) -> Group:
        """Common settings are above the table, varying ones above their columns."""
        differing = varying(self.rows)
        table = RichTable("")
        for row in self.rows:
            title = [short_dataset(row["dataset"]), *(f"{setting} {row.get(setting)}" for setting in differing)]
            table.add_column(Text("\n".join(map(one_line, title))), justify="right")
        table.add_column("", style="dim", overflow="fold")
        for label, column, meaning in lines_of(self.rows):
            texts = [label, *(one_line(cell_text(row, column)) for row in self.rows), meaning]
            table.add_row(*map(Text, texts), style="bold" if column == "speedup" else "")
        above = [shared_settings(self.rows, differing), *caveats(self.rows)]
        return Group(*(Text(one_line(line)) for line in above), Fitted(table))

    def markdown(self) -> str:
        header = ["", *(literal(one_line(short_dataset(row["dataset"]))) for row in self.rows)]
        found = [
            [label.strip(), *(cell_text(row, column) for row in self.rows)] for label, column, _ in lines_of(self.rows)
        ]
        above = paragraphs(list(map(literal, caveats(self.rows))))
        return "\n".join([*above, *markdown_table(header, found, "l" + "r" * len(self.rows))]) + "\n"


# --- levels of nests, the waterfall -----------------------------------------------------------------------------------

LEVEL = (
    ("alpha", "alpha"), ("tokens\n/ round", "tokens_per_round"), ("c", "c"), ("v", "v"), ("rounds", "rounds"),
)  # fmt: skip
LEVEL_HEADER = ("", "level", *(label for label, _ in LEVEL))
STAGES = (  # heading, column, whether it is a sum rather than a term
    ("ideal", "speedup_ideal", True), ("first\ndraft", "term_first_draft", False),
    ("predicted", "speedup_predicted", True), ("levels", "term_levels", False),
    ("position", "term_position", False), ("verify", "term_verify", False), ("sampling", "term_sampling", False),
    ("host", "term_host", False), ("update", "term_update", False), ("trun-\ncated", "term_truncated", False),
    ("cali-\nbrated", "speedup_calibrated", True), ("rest", "term_rest", False), ("measured", "speedup", True),
)  # fmt: skip
STAGES_LEGEND = (
    "ideal: the formula with later drafts' cost; predicted: the formula; position: acceptance by position for one "
    "alpha; verify, sampling, host, update: measured costs for none; truncated: rounds cut short by the end of a text; "
    "rest: what the calibrated speedup leaves"
)
OF_SOME = ("term_levels", "term_update")  # for nests, and for drafts that learn: hidden if no cell has them


BAR = 30  # characters of the longest bar of a waterfall


def levels_tables(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """A line per level of every nest; empty without nests."""
    lines = level_lines(rows, names)
    title = "level by level: level 2 drafts for level 1; c and v in baseline steps"
    return [Table(title, LEVEL_HEADER, lines, left=1, keys=2)] if lines else []


def level_lines(rows: Sequence[Row], names: Sequence[str], text: CellText = cell_text) -> list[list[str]]:
    """A line per level of every nest: cell name, level (1 is the target's) and its numbers formatted by `text`."""
    return [
        [name, str(level), *(text(row, column + f"_{level}" * (level > 1)) for _, column in LEVEL)]
        for row, name in zip(rows, names, strict=True)
        for level in (range(1, depth(row) + 1) if depth(row) > 1 else ())
    ]


def is_timed(row: Row) -> bool:
    """Whether all terms of the waterfall of a cell are known."""
    return all(is_number(row.get(column)) for _, column, _ in STAGES if column not in OF_SOME)


def why_tables(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """From predicted to measured speedup, a line per cell with timed phases, if any. Terms add up to the sums."""
    timed = [(row, name) for row, name in zip(rows, names, strict=True) if is_timed(row)]
    if not timed:
        return []
    stages = stages_of([row for row, _ in timed])
    table = Table(
        title="from the formula to the measurement, in units of speedup",
        header=("", *(label for label, _, _ in stages)),
        lines=[
            [name, *(amount(row.get(column) or 0.0, is_sum) for _, column, is_sum in stages)] for row, name in timed
        ],
        left=1,
        legend=STAGES_LEGEND,
        bold_columns=[number for number, (_, _, is_sum) in enumerate(stages, start=1) if is_sum],
    )
    return [table]


def waterfalls(rows: Sequence[Row]) -> list[Table]:
    """The fastest of these cells as a waterfall: a bar for every sum, and for every term the step between two sums."""
    place = fastest(rows)
    if place is None or not is_timed(rows[place]):
        return []
    row, reached, lines = rows[place], 0.0, []
    stages = stages_of([row])
    scale = BAR / max(*(number_in(row, column) or 0.0 for _, column, is_sum in stages if is_sum), 1.0)
    for label, column, is_sum in stages:
        value = number_in(row, column) or 0.0
        low, high = (0.0, value) if is_sum else sorted((reached, reached + value))
        first, last = round(low * scale), round(high * scale)
        bar = " " * first + ("█" if is_sum else "▒" if value < 0 else "▓") * (last - first)
        lines.append([unbroken(label), amount(value, is_sum).rjust(7), bar])
        reached = value if is_sum else reached + value
    title = f"\nfrom the formula to the measurement · {cell_name(row, rows)}"
    return [Table(title, ("", "speedup", ""), lines, left=3, legend="▒ lost, ▓ gained on the way to the next sum")]


def stages_of(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    """The steps from prediction to measurement; those for nests and learning only if some cell has them."""
    return [one for one in STAGES if one[1] not in OF_SOME or any(number_in(row, one[1]) for row in rows)]


def amount(value: float, is_sum: bool) -> str:
    """A sum as a speedup, a term with its sign."""
    return f"{value:.3f}" if is_sum else f"{value:+.3f}".replace("-", "−")


# --- the best lookahead by batch --------------------------------------------------------------------------------------


def k_by_batch_tables(series: Sequence[Sequence[Row]]) -> Iterator[Table]:
    """The best lookahead by batch, with v(B, K), of every series with several lookaheads."""
    for rows in series:
        found = best_ks(rows)
        if len(found) > 1 and any(len(one.v) > 1 for one in found):
            ks = sorted({k for one in found for k in one.v})
            yield Table(
                title=f"best K by batch · {heading(rows)}",
                header=("batch", "best K", "within\n1 %", "speedup", "95 % interval", *(f"v\nK = {k}" for k in ks)),
                lines=[k_by_batch_line(one, ks) for one in found],
                keys=2,
                above=caveats(rows),
                findings=vllm_findings(found),
                legend="v: the target's pass over batch × (K + 1) tokens ÷ over batch × 1",
            )


def k_by_batch_line(one: BestK, ks: Sequence[int]) -> list[str]:
    """One batch; K = 0 is decoding without a draft, with speedup 1 by definition."""
    numbers = [cell_text(one.row, name) for name in ("speedup", "speedup_interval")] if one.row else ["1", NOTHING]
    return [str(one.batch), str(one.k), ranges(one.near), *numbers, *(formatted(one.v.get(k), ".2f") for k in ks)]


def vllm_findings(found: Sequence[BestK]) -> list[str]:
    """The configuration for vLLM, and the unmeasured batch sizes."""
    schedule = vllm_schedule(found)
    if not schedule:
        fixed = "vLLM takes no K by batch with this draft: choose one K"
        return [fixed if any(one.k for one in found) else "no K pays at any of these batches: serve without a draft"]
    first, last = found[0].batch, found[-1].batch
    below = f"below {first} it takes that of {first}, " if first > 1 else ""
    return [
        f"vLLM, to add to --speculative-config: {json.dumps(schedule)[1:-1]}",
        f"not measured: {below}above {last} vLLM keeps that of {last}",
    ]


# --- categories of prompts --------------------------------------------------------------------------------------------

CATEGORY = (
    ("n", "prompts"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("mean\nalpha", "alpha_mean"), ("c", "c"), ("v", "v"),
)  # fmt: skip
OF_SOME_CELLS = (("runs\nelsewhere", "speedup_elsewhere"), ("draft\ncoverage", "draft_coverage"))
ACROSS = (("speedup", "speedup"), ("tokens per round", "tokens_per_round"))  # for every method, in every category
CATEGORY_LEGEND = "from totals over the n prompts of a category; mean alpha: of their own alphas, each counted alike"
SHORTEST = 2  # fewest prompts of a shown category: one prompt is no evidence


def several(rows: Sequence[Row]) -> list[Row]:
    """The categories with several prompts."""
    return [row for row in rows if row["prompts"] >= SHORTEST]


def of_cell(row: Row, categories: Sequence[Row]) -> list[Row]:
    return [one for one in categories if text_in(one, "cell") == text_in(row, "cell")]


def cell_categories(rows: Sequence[Row], categories: Sequence[Row]) -> list[Table]:
    """A table for every cell with categories of several prompts, with a legend below the last one."""
    cells = [row for row in rows if several(of_cell(row, categories))]
    return [category_table(row, cells, of_cell(row, categories), row is cells[-1]) for row in cells]


def category_table(row: Row, cells: Sequence[Row], categories: Sequence[Row], last: bool) -> Table:
    """One line per category of a cell."""
    alone = clean(f"{short_dataset(row['dataset'])} · {method_name(row)} · K {lookahead(row)}", 200)
    shown, name = several(categories), name_among(row, cells) if len(cells) > 1 else alone
    single = len(categories) - len(shown)
    further = [one for one in OF_SOME_CELLS if any(not is_absent(row.get(one[1])) for row in shown)]
    return Columns((("category", lambda row: clean(row["category"])),), (*CATEGORY, *further)).table(
        f"by category · {name}" + f" · {single} with one prompt not shown" * bool(single),
        shown,
        left=1,
        above=(),
        legend=CATEGORY_LEGEND * last,
    )


def method_categories(rows: Sequence[Row], names: Sequence[str], categories: Sequence[Row]) -> list[Table]:
    """Method × category: a table of the speedup and one of the tokens per round; empty without categories."""
    found = [{one["category"]: one for one in several(of_cell(row, categories))} for row in rows]
    kinds = sorted({kind for some in found for kind in some})
    return [
        Table(
            f"{label} by category",
            ("method", *map(clean, kinds)),
            [
                [name, *(cell_text(some[kind], column) if kind in some else NOTHING for kind in kinds)]
                for name, some in zip(names, found, strict=True)
            ],
            left=1,
        )
        for label, column in (ACROSS if kinds else ())
    ]


# --- predicted acceptance of schedules --------------------------------------------------------------------------------

BELIEFS = (
    ("tests", "belief_tests"), ("believed", "belief_mean"), ("accepted", "belief_accepted"), ("ECE", "belief_ece"),
    ("ECE\nif exact", "belief_ece_if_exact"), ("Brier", "belief_brier"),
)  # fmt: skip
OF_BIN = (("tests", "tests"), ("believed", "believed"), ("accepted", "accepted"))
MOST = 3  # cells with shown curves
BELIEFS_TITLE = "what schedules predicted for drafted tokens"
BELIEFS_LEGEND = (
    "tests: judged tokens with a belief (predicted acceptance); ECE: mean distance between belief and share accepted, "
    "over tenths of belief; if exact: the ECE of exact beliefs by chance"
)

Beliefs = Mapping[str, Sequence[Row]]  # the curve of a cell, by its key


def reliability_tables(rows: Sequence[Row], found: Beliefs) -> list[Table]:
    """A line for every cell whose schedule predicts acceptance, and the curves of a few; empty without any."""
    believing = [row for row in rows if not is_absent(row.get("belief_tests"))]
    if not believing:
        return []
    top = fastest(believing)
    first = [] if top is None else [believing[top]]
    ordered = [*first, *(row for row in believing if row not in first)]
    curves = [row for row in ordered if found.get(text_in(row, "cell"))][:MOST]
    shown = Columns((("", lambda row: name_among(row, rows)),), BELIEFS)
    errors = shown.table(BELIEFS_TITLE, believing, left=1, above=(), legend=BELIEFS_LEGEND)
    return [errors, *([curves_table(curves, found)] if curves else [])]


def curves_table(cells: Sequence[Row], found: Beliefs) -> Table:
    """A line for every belief bin with tests in a cell."""
    names = [name_among(row, cells) if len(cells) > 1 else "" for row in cells]
    curves = [{(one["low"], one["high"]): one for one in found[text_in(row, "cell")]} for row in cells]
    lines = []
    for low, high in sorted({ends for curve in curves for ends in curve}):
        bins = [curve.get((low, high)) for curve in curves]
        numbers = [cell_text(one, name) if one else NOTHING for one in bins for _, name in OF_BIN]
        lines.append([f"{low:.1f} – {high:.1f}", *numbers])
    header = ("belief", *(f"{name}\n{label}".strip() for name in names for label, _ in OF_BIN))
    return Table(f"{BELIEFS_TITLE}, by belief", header, lines, left=1)
