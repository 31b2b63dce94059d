"""What a reader must know besides the numbers of a run: failures, text in circles, few prompts, a busy machine.

Knows rows of results.csv; must not know how they are printed.
"""

from collections.abc import Sequence

from specbench.judge.advice import costly_verification, experts_touched, losing
from specbench.judge.candidates import distance_of
from specbench.judge.misleading import circles, rejected_drafts
from specbench.results.noise import Diagnostics, warnings
from specbench.results.statistics import ENOUGH, FEWEST, Interval, half_width
from specbench.results.steadiness import faults, worst
from specbench.show.cell_text import is_absent, lookahead
from specbench.wording import Row, clean, counted, formatted, grouped, number_in

IDLE = 0.1  # share of row passes without a prompt above which a note says so


def notes(rows: Sequence[Row]) -> list[str]:
    """All notes on the cells of a run, each once: how cells ended, then what was left out, then cell by cell."""
    found = [f"{r['dataset']}, K {lookahead(r)}: {r['status']}: {r['error']}" for r in rows if r["status"] != "ok"]
    found += [f"{r['dataset']}: left out {r['rejected']}" for r in rows if r.get("rejected")]
    found += [*circles(rows), *unsteady(rows), *costly_verification(rows)]
    found += [note for row in rows for note in notes_on(row)]
    return list(dict.fromkeys(found))


def unsteady(rows: Sequence[Row]) -> list[str]:
    """What did not keep its pace, by data set: cells that share a baseline share most of it, so the worst is told."""
    found = [
        (some[0]["dataset"], worst(fault for row in some for fault in faults(row)))
        for some in grouped(rows, lambda row: str(row["dataset"]))
    ]
    return [f"{dataset}: {fault.note}" for dataset, several in found for fault in several]


def notes_on(row: Row) -> list[str]:
    """The notes on one cell, in their order."""
    of_dataset = [*form(row), *machine(row), *stopping(row), *few_prompts(row), *shared_time(row), *learning(row)]
    lossy = [f"{row['dataset']}, {row['method']}: {distance_of(row)}"] if row.get("lossless") == "lossy" else []
    found = [*(f"{row['dataset']}: {line}" for line in of_dataset), *lossy, *losing(row)]
    found += experts_touched(row)
    return [*found, *rejected_drafts(row), *(f"{row['dataset']}: {line}" for line in near_ties(row))]


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


def machine(row: Row) -> list[str]:
    """What the machine did while a cell was measured; cells that share a baseline share most of it."""
    if not row.get("prompts"):
        return []
    found = Diagnostics(**{name: row[name] for name in Diagnostics.__dataclass_fields__})
    return warnings(found, (row.get("turns") or row["prompts"]) * row["repeat"], row.get("threads"))


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
    draws, idle = row["draws"], row["rows_idle"]
    over = f"over {draws} turns" if draws > 1 else "unknown, as there was one turn"
    more = "" if draws >= FEWEST else f" (--limit {FEWEST * row['batch']} gives {FEWEST})"
    ends = f"; rows stood idle in {idle:.0%} of the passes: more prompts per turn (--limit)" if idle > IDLE else ""
    return [f"prompts of a batch of {row['batch']} share their time: the interval is {over}{more}{ends}"]


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
