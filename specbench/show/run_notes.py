"""What a reader must know besides the numbers of a run: failures, text in circles, few prompts, a busy machine.

Knows rows of results.csv; must not know how they are printed.
"""

from collections.abc import Callable, Collection, Sequence

from specbench.judge.advice import circles, costly_verification, experts_touched, losing, rejected_drafts, worst_circle
from specbench.judge.candidates import best_fixed, distance_of
from specbench.results.noise import LOAD, Diagnostics, Fault, faults, warned
from specbench.results.numbers import per_draw
from specbench.results.statistics import ENOUGH, FEWEST, Interval, half_width
from specbench.show.cell_text import is_absent
from specbench.show.headings import cell_name, cell_names
from specbench.wording import Row, clean, counted, formatted, grouped, number_in

IDLE = 0.1  # share of row passes without a prompt above which a note says so
FEW = 4  # notes on a screen; the others, and what explains the numbers, are told to those who ask


def notes(rows: Sequence[Row]) -> list[str]:
    """All notes on the cells of a run, each once: how cells ended, then what was left out, then cell by cell."""
    found = [*circles(rows), *remarkable(rows), *costly_verification(rows), *named(rows, few_prompts)]
    found += [line for row in rows for line in (*losing(row), *experts_touched(row))]
    return [*endings(rows), *dict.fromkeys(found)]


def brief(rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """The notes that change what a reader makes of the numbers: all on cells that ended otherwise, few of the others.

    said: the doubts that the answers have told already.
    """
    loaded = any(doubt.startswith("under load") for doubt in said)
    further = remarkable(rows, *([LOAD] if loaded else []), *said)
    shown = list(dict.fromkeys([*worst_circle(rows), *further]))
    more = [f"{counted(len(shown) - FEW, 'more note')}: --explain"] if len(shown) > FEW else []
    return [*endings(rows), *shown[:FEW], *more]


def endings(rows: Sequence[Row]) -> list[str]:
    """How cells ended that have no numbers or only a part of them, and what was left out of data sets."""
    ended = [row for row in rows if row["status"] != "ok"]
    found = [f"{cell_name(r, rows)}: {r['status']}: {r['error']}" for r in ended]
    return found + list(dict.fromkeys(f"{r['dataset']}: left out {r['rejected']}" for r in rows if r.get("rejected")))


def remarkable(rows: Sequence[Row], *said: str) -> list[str]:
    """What a reader must know of cells that were measured; but for circles, and faults that were said."""
    found = [*unsteady(rows, said), *machine(rows, said)]
    for part in (form, stopping, shared_time, held, learning, lossy, near_ties):
        found += named(rows, part)
    found += [line for row in rows for line in choosing(row, rows)]
    return [*found, *(line for row in rows for line in rejected_drafts(row))]


def named(rows: Sequence[Row], part: Callable[[Row], list[str]]) -> list[str]:
    """What one kind of note says, with its cells: one line for all of them that it says the same of."""
    told = [(line, row) for row in rows for line in part(row)]
    return [f"{cell_names([row for _, row in some], rows)}: {some[0][0]}" for some in grouped(told, lambda one: one[0])]


def choosing(row: Row, rows: Sequence[Row]) -> list[str]:
    """What a cell chose that chooses its method, what that cost, and its regret where that was measured."""
    if not row.get("chosen"):
        return []
    found = best_fixed(row, rows)
    beside = (
        f"; {found[1]:+.1%} of time against {found[0]}, the best of its choices measured beside it" if found else ""
    )
    spent = formatted(number_in(row, "choosing_cost"), "+.1%")
    return [f"{cell_name(row, rows)}: chose {clean(row['chosen'], 200)}; the others cost {spent} of time{beside}"]


def lossy(row: Row) -> list[str]:
    return [distance_of(row)] if row.get("lossless") == "lossy" else []


def unsteady(rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """What did not keep its pace: cells that share a baseline share most of it, so of every kind the worst is told."""
    told = [(fault, row) for row in rows for fault in faults(row) if not (fault.doubt and fault.doubt in said)]
    return [f"{cell_names([row], rows)}: {fault.note}" for fault, row in worst_of(told)]


def machine(rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """What the machine did while cells were measured, of every kind the worst with its cell."""
    told = [
        (fault, row) for row in rows if row.get("prompts") for fault in machine_faults(row) if fault.kind not in said
    ]
    return [f"{cell_names([row], rows)}: {fault.note}" for fault, row in worst_of(told)]


def machine_faults(row: Row) -> list[Fault]:
    found = Diagnostics(**{name: row[name] for name in Diagnostics.__dataclass_fields__})
    return warned(found, (row.get("turns") or row["prompts"]) * row["repeat"], row.get("threads"))


def worst_of(told: Sequence[tuple[Fault, Row]]) -> list[tuple[Fault, Row]]:
    """Of every kind of fault the worst."""
    return [max(some, key=lambda one: one[0].size) for some in grouped(told, lambda one: one[0].kind)]


def form(row: Row) -> list[str]:
    """In which form the target has read the prompts, where it is an instruct model or had a chat template."""
    template, words = row.get("chat_template_resolved") or "none", row.get("prompt_form")
    if template == "none":
        return []
    if template == "not applied":
        way = "leave out --chat-template none" if row.get("chat_template") == "none" else "--chat-template always"
        return [
            f"an instruct model has read plain text (prompt form {words}) without its chat template, which is not how "
            f"it is used, and acceptance is another then: {way}"
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
    asked = f"the speedup is known to ± {reached:.1%}, asked for ± {row['until_ci']:.1%}"
    return [f"{ended} after {row['prompts']} prompts: {asked} (looked only after 20, 30, 45 …)"]


def few_prompts(row: Row) -> list[str]:
    if not row.get("prompts") or row["prompts"] >= ENOUGH:
        return []
    return [f"{counted(row['prompts'], 'prompt')}: below {ENOUGH} a few unusual ones decide the interval"]


def shared_time(row: Row) -> list[str]:
    """What the interval of a batch is over: prompts decoded together are one draw of a time."""
    if not row.get("prompts") or row["batch"] < 2:
        return []
    draws, idle, arrivals = row["draws"], row["rows_idle"], number_in(row, "arrivals")
    over = f"over {draws} turns" if draws > 1 else "unknown, as there was one turn"
    more = "" if draws >= FEWEST else f" (--limit {FEWEST * per_draw(row['batch'], arrivals)} gives {FEWEST})"
    if arrivals is not None:
        return [f"requests of a turn wait for each other: the interval is {over}{more}"]
    ends = f"; rows stood idle in {idle:.0%} of the passes: more prompts per turn (--limit)" if idle > IDLE else ""
    return [f"prompts of a batch of {row['batch']} share their time: the interval is {over}{more}{ends}"]


def held(row: Row) -> list[str]:
    """Whether more requests came than may be under way at once: what a server would make of them is not known."""
    arms = {"the method": "requests_held", "the baseline": "baseline_requests_held"}
    found = [f"{number:.0f} of {whose}" for whose, name in arms.items() if (number := number_in(row, name))]
    if not found:
        return []
    return [
        f"requests that waited, as {row['batch']} were under way, the most that may be: {' and '.join(found)}; waits "
        "count: raise --batch, or lower --arrivals"
    ]


def learning(row: Row) -> list[str]:
    """What the interval of a method that learns is over, and what learning costs."""
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
    """How many greedy outputs differ by rounding alone."""
    if row.get("lossless") != "numeric":
        return []
    compared = row["prompts_compared"]
    return [
        f"{compared - row['prompts_identical']} of {compared} outputs part from the baseline's at near-ties "
        f"(top-2 gap {row['top2_gap']:.2g} ≤ 2 × noise {row['noise_floor']:.2g})"
    ]
