"""The results of a run on stdout: answer, tables and notes, or its rows as CSV, JSON, JSON lines, Markdown."""

import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from rich.console import Console, Group

from specbench.judge.advice import (
    circles,
    costly_verification,
    experts_touched,
    is_served,
    losing,
    rejected_drafts,
    worst_circle,
)
from specbench.judge.candidates import distance_of, regrets
from specbench.judge.settling import BUSY, in_few_turns, per_turn, with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.cells import Cell
from specbench.results.documents import About
from specbench.results.named_runs import json_rows, write_rows
from specbench.results.noise import LOAD, Fault, faults, warned
from specbench.results.statistics import ENOUGH, FEWEST, Interval, half_width
from specbench.show.details import (
    Beliefs,
    SideBySide,
    cell_categories,
    k_by_batch_tables,
    levels_tables,
    method_categories,
    reliability_tables,
    waterfalls,
    why_tables,
)
from specbench.show.engines import engines_table, served_tables
from specbench.show.fitting import draw, sentence
from specbench.show.table import Table
from specbench.show.tables import batch_table, cells_table, context_table, fastest, methods_table, sweep_tables
from specbench.show.text import (
    FEW,
    Format,
    arranged,
    by_batch,
    by_context,
    by_engine,
    cell_name,
    cell_names,
    is_absent,
    lookahead,
    method_name,
    name_among,
    one_line,
    pair_name,
)
from specbench.show.verdict import details, paragraphs, together
from specbench.wording import Row, clean, counted, formatted, grouped, interval_text, literal, number_in

FORMATS: tuple[Format, ...] = get_args(Format)
ANSWERS = ("YES", "NO", "PROVISIONAL", "UNCLEAR")
IDLE = 0.1  # least share of row passes without a prompt for a note
NOTES = 4  # notes on a screen without --explain


@dataclass(frozen=True)
class Shown:
    """What is shown of a run besides its rows.

    command, run: its command line, and its folder as named in commands; categories, beliefs: the rows of
    these tables; explain: include every explanatory table and all notes. about: the run's identity in JSON;
    None for rows without a run. regrets: `regret_lines`.
    """

    command: str = ""
    run: str = ""
    categories: Sequence[Row] = ()
    beliefs: Beliefs = field(default_factory=dict)
    explain: bool = False
    about: About | None = None
    regrets: Sequence[str] = ()

    @staticmethod
    def of(cells: Sequence[Cell], command: str, run: str, *, explain: bool) -> "Shown":
        """Collect what is shown of a run besides the rows of its cells."""
        categories = [row for cell in cells for row in cell.category_rows()]
        beliefs = {cell.spec.key: cell.belief_rows() for cell in cells}
        return Shown(command, run, categories, beliefs, explain, regrets=regret_lines(cells))


SHOWN = Shown()


def print_run(rows: Sequence[Row], style: str, console: Console, shown: Shown = SHOWN) -> None:
    """Print the answer, the tables and the notes on the console of stdout."""
    if style != "table":
        console.file.write(rendered(rows, style, shown))
        return
    found = answers(rows, shown)
    for line in map(one_line, together(found)):
        sentence(console, line, "bold" if line.startswith(ANSWERS) else "")
    console.print()
    draw(console, Group(*(table.drawn() for table in tables(rows, shown, screen=True))))
    figures = [line for one in found for line in details(one)] if shown.explain else []
    for line in [*notes_below(rows, found, shown), *figures]:
        sentence(console, one_line(line))


def rendered(rows: Sequence[Row], style: str, shown: Shown = SHOWN) -> str:
    """The rows as csv, json, jsonl or md."""
    if style == "csv":
        buffer = io.StringIO()
        write_rows(buffer, rows)
        return buffer.getvalue()
    if style == "json":
        return json.dumps(shown.about.document(rows) if shown.about else json_rows(rows), indent=2) + "\n"
    if style == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in json_rows(rows))
    found = answers(rows, shown)
    parts = [*paragraphs(found, shown.explain), *(table.markdown() for table in tables(rows, shown, screen=False))]
    listed = "".join(f"- {literal(one_line(note))}\n" for note in notes_below(rows, found, shown))
    return "\n".join([*parts, listed] if listed else parts)


def answers(rows: Sequence[Row], shown: Shown) -> list[Recommendation]:
    return recommend(with_command(rows, shown.command, shown.run))


# --- selection of tables ----------------------------------------------------------------------------------------------


def tables(rows: Sequence[Row], shown: Shown, *, screen: bool) -> Iterator[Table | SideBySide]:
    """All tables of a run in order; without --explain only those that are its purpose."""
    yield from map(cells_table, grouped(rows, pair_name))
    if shown.explain:
        yield from reasons(rows, screen=screen)
        yield from map(context_table, by_context(rows))
        yield from map(batch_table, by_batch(rows))
        yield from k_by_batch_tables(by_batch(rows))
    if shown.explain or screen:
        yield from map(engines_table, by_engine(rows))
    if not shown.explain:
        yield from k_by_batch_tables(by_batch(rows))
    yield from served_tables(rows)
    if shown.explain:
        yield from category_tables(rows, shown.categories)
        yield from reliability_tables(rows, shown.beliefs)


def reasons(rows: Sequence[Row], *, screen: bool) -> Iterator[Table | SideBySide]:
    """Costs, acceptance, levels and the waterfall: a few cells at a time on a screen, all at once in Markdown."""
    swept, listed, alone = arranged(rows)
    sweeps, methods = [(sweep_tables(some), some) for some in swept], list(map(methods_table, listed))
    if not screen:
        names = [name_among(row, rows) for row in rows]
        yield from [SideBySide(alone)] if alone else []
        for some, _ in sweeps:
            yield from some
        yield from [*methods, *levels_tables(rows, names), *why_tables(rows, names)]
        return
    for some, group in sweeps:
        names = list(map(lookahead, group))
        yield from (*some, *levels_tables(group, names), *why_tables(group, names), *waterfalls(group))
    for table, group in zip(methods, listed, strict=True):
        names = list(map(method_name, group))
        yield from (table, *why_tables(group, names), *waterfalls(group))
    for few in (alone[i : i + FEW] for i in range(0, len(alone), FEW)):
        names = [name_among(row, few) for row in few]
        yield SideBySide(few)
        yield from [*levels_tables(few, names), *why_tables(few, names), *waterfalls(few)]


def category_tables(rows: Sequence[Row], categories: Sequence[Row]) -> Iterator[Table]:
    """By category: all methods of a list, the best lookahead of every sweep, and single cells."""
    sweeps, methods, alone = arranged(rows)
    for group in methods:
        yield from method_categories(group, list(map(method_name, group)), categories)
    best = [group[place] for group in sweeps if (place := fastest(group)) is not None]
    yield from cell_categories([*best, *alone], categories)


# --- notes ------------------------------------------------------------------------------------------------------------


def notes_below(rows: Sequence[Row], found: Sequence[Recommendation], shown: Shown) -> list[str]:
    """The notes below the tables: all with --explain, else the few that change the meaning of the numbers."""
    more = notes(rows) if shown.explain else brief(rows, [reason for one in found for reason in one.reasons])
    return [*shown.regrets, *more]


def regret_lines(cells: Sequence[Cell]) -> list[str]:
    """What adaptive cells cost against the best static choice measured beside them, under each load."""
    found = list(regrets(cells))
    rows = [cell.row() for cell in cells] if found else []
    return [
        f"{cell_name(row, rows)}: regret {over.value:+.1%} of time "
        + (f"[{over.low:+.1%}, {over.high:+.1%}]" if over.low == over.low else interval_text(None, None))
        + f" against {best}, the best of {among} static choices"
        for row, best, among, over in found
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """All distinct notes on the cells of a run: how cells ended, then what was left out, then cell by cell."""
    found = [*circles(rows), *remarkable(rows), *costly_verification(rows)]
    found += [*named(rows, few_prompts), *named(rows, near_ties)]
    found += [line for row in rows for line in (*losing(row), *experts_touched(row))]
    return [*endings(rows), *dict.fromkeys(found)]


def brief(rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """The most important notes: all on cells that ended early, and a few others. said: doubts already named."""
    loaded = any(doubt.startswith(BUSY) for doubt in said)
    further = remarkable(rows, *([LOAD] if loaded else []), *said)
    shown = list(dict.fromkeys([*worst_circle(rows), *further]))
    more = [f"{counted(len(shown) - NOTES, 'more note')}: --explain"] if len(shown) > NOTES else []
    return [*endings(rows), *shown[:NOTES], *more]


def endings(rows: Sequence[Row]) -> list[str]:
    """How cells without complete numbers ended, and what was left out of data sets."""
    ended = [row for row in rows if row["status"] != "ok"]
    found = [f"{cell_name(r, rows)}: {r['status']}: {r['error']}" for r in ended]
    return found + list(dict.fromkeys(f"{r['dataset']}: left out {r['rejected']}" for r in rows if r.get("rejected")))


def remarkable(rows: Sequence[Row], *said: str) -> list[str]:
    """Notes on measured cells, without loops and faults, which are reported elsewhere."""
    seen = [(fault, row) for row in rows for fault in faults(row) if not (fault.doubt and fault.doubt in said)]
    found = [*worst_of(seen, rows), *machine(rows, said)]
    for part in (form, stopping, shared_time, held, learning, lossy):
        found += named(rows, part)
    found += [line for row in rows for line in choosing(row, rows)]
    return [*found, *(line for row in rows for line in rejected_drafts(row))]


def named(rows: Sequence[Row], part: Callable[[Row], list[str]]) -> list[str]:
    """One kind of note with its cells: one line for all cells with the same note."""
    seen = [(line, row) for row in rows for line in part(row)]
    return [f"{cell_names([row for _, row in some], rows)}: {some[0][0]}" for some in grouped(seen, lambda one: one[0])]


def choosing(row: Row, rows: Sequence[Row]) -> list[str]:
    """The choices of a cell that chooses its method, and their cost."""
    if not row.get("chosen"):
        return []
    spent = formatted(number_in(row, "choosing_cost"), "+.1%")
    return [f"{cell_name(row, rows)}: chose {clean(row['chosen'], 200)}; the others cost {spent} of time"]


def lossy(row: Row) -> list[str]:
    return [distance_of(row)] if row.get("lossless") == "lossy" else []


def machine(rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """The machine's behaviour during the measurement: the worst of every kind, with its cell."""
    measured = (row for row in rows if row.get("prompts"))
    seen = [(fault, row) for row in measured for fault in machine_faults(row) if fault.kind not in said]
    return worst_of(seen, rows)


def machine_faults(row: Row) -> Iterator[Fault]:
    return warned(row, (row.get("turns") or row["prompts"]) * row["repeat"], row.get("threads"))


def worst_of(seen: Sequence[tuple[Fault, Row]], rows: Sequence[Row]) -> list[str]:
    """The worst of every kind of fault, with its cell among `rows`."""
    worst = [max(some, key=lambda one: one[0].size) for some in grouped(seen, lambda one: one[0].kind)]
    return [f"{cell_names([row], rows)}: {fault.note}" for fault, row in worst]


def form(row: Row) -> list[str]:
    """The prompt format, if the target is an instruct model or had a chat template."""
    template, words = row.get("chat_template_resolved") or "none", row.get("prompt_form")
    if template == "none":
        return []
    if template == "not applied":
        way = "leave out --chat-template none" if row.get("chat_template") == "none" else "--chat-template always"
        return [
            f"an instruct model has read plain text (prompt form {words}) without its chat template, unlike in "
            f"practice, which changes acceptance: {way}"
        ]
    whose = "the target's chat template" if template == "own" else f"the chat template {clean(template, 300)}"
    return [f"prompts in {whose}, prompt form {words}", *conversations(row)]


def conversations(row: Row) -> list[str]:
    """What was decoded of conversations with several turns."""
    if not row.get("turns"):
        return []
    of = f"{row['turns']} turns of {counted(row['prompts'], 'conversation')}, each on the baseline's earlier answers"
    cut = f"; no context was left for {counted(row['turns_cut'], 'later turn')}" * bool(row["turns_cut"])
    return [of + cut * (row["status"] == "ok")]


def stopping(row: Row) -> list[str]:
    """Whether `--until-ci` reached its goal."""
    if not row.get("until_ci") or is_absent(row.get("speedup_low")):
        return []
    reached = half_width(Interval(row["speedup"], row["speedup_low"], row["speedup_high"]))
    ended = "stopped" if reached <= row["until_ci"] else "had no more prompts"
    width = f"the speedup is known to ± {reached:.1%}, requested ± {row['until_ci']:.1%}"
    return [f"{ended} after {row['prompts']} prompts: {width} (looked only after 20, 30, 45 …)"]


def few_prompts(row: Row) -> list[str]:
    if not row.get("prompts") or row["prompts"] >= ENOUGH:
        return []
    return [f"{counted(row['prompts'], 'prompt')}: below {ENOUGH} a few unusual ones decide the interval"]


def shared_time(row: Row) -> list[str]:
    """The unit of a batch's interval: prompts decoded together are one draw of a time."""
    if not row.get("prompts") or row["batch"] < 2:
        return []
    draws, idle, arrivals = row["draws"], row["rows_idle"], number_in(row, "arrivals")
    over = f"over {draws} turns" if draws > 1 else "unknown, as there was one turn"
    enough = f" (--limit {FEWEST * per_turn(row)} gives {FEWEST})"
    more = "" if draws >= FEWEST else enough
    if arrivals is not None:
        return [f"requests of a turn wait for each other: the interval is {over}{more}"]
    ends = f"; rows were idle in {idle:.0%} of the passes: more prompts per turn (--limit)" if idle > IDLE else ""
    if not is_served(row):
        return [f"prompts of a batch of {row['batch']} share their time: the interval is {over}{more}{ends}"]
    if in_few_turns(row):
        over, more = f"over prompts, and what changed between fewer than {FEWEST} turns is not in it", enough
    return [f"{row['batch']} requests in flight: the interval is {over}{more}{ends}"]


def held(row: Row) -> list[str]:
    """Whether requests exceeded the concurrency limit: how a server would handle these is unknown."""
    arms = {"the method": "requests_held", "the baseline": "baseline_requests_held"}
    found = [f"{number:.0f} of {whose}" for whose, name in arms.items() if (number := number_in(row, name))]
    if not found:
        return []
    return [
        f"requests that waited because {row['batch']} were in flight, the limit: {' and '.join(found)}; waits count: "
        "raise --batch, or lower --arrivals"
    ]


def learning(row: Row) -> list[str]:
    """The unit of the interval for a method that learns, and the cost of learning."""
    share = number_in(row, "update_share")
    if not row.get("carries") or share is None:
        return []
    elsewhere = formatted(number_in(row, "speedup_elsewhere"))
    return [
        f"{row['method']} learns from prompt to prompt: its interval is over {counted(row['draws'], 'block')} of "
        f"consecutive prompts; updates of its draft are {share:.1%} of its time, and counted: run elsewhere, they "
        f"would leave {elsewhere}×"
    ]


def near_ties(row: Row) -> list[str]:
    """The number of greedy outputs that differ only by rounding."""
    if row.get("lossless") != "numeric":
        return []
    compared = row["prompts_compared"]
    return [
        f"{compared - row['prompts_identical']} of {compared} outputs differ from the baseline's where two tokens were "
        f"nearly tied (top-2 gap {row['top2_gap']:.2g} ≤ 2 × noise {row['noise_floor']:.2g})"
    ]
