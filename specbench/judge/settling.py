"""Why an answer is only provisional, and what settles it: how many prompts, on what machine, by which command.

A row may have two fields beyond results.csv: `command`, the command line of its run, and `run`, the name of its folder.
"""

import math
import shlex
from collections.abc import Mapping, Sequence

from specbench.data.sources import LONG, shipped_rows
from specbench.judge.advice import is_served
from specbench.judge.candidates import Candidate
from specbench.results.noise import TIER, worst
from specbench.results.numbers import per_draw
from specbench.results.statistics import ENOUGH, FEWEST, Interval, half_width, to_settle
from specbench.wording import Row, clean, counted, number_in, text_in

MEASURING = {"run", "sweep-k", "sweep"}
BUSY = "the machine was busy with other programs"
MOSTLY_LOOPS = 0.5  # share of tokens in loops above which a speedup is not representative of useful text
LONGEST = 800  # characters of a displayed command: a truncated one would be another command


def with_command(rows: Sequence[Row], command: str, run: str = "") -> list[Row]:
    """The rows of a run with its command line and the name of its folder."""
    return [{**row, "command": command, "run": run} for row in rows]


def doubts(carrying: Sequence[Candidate]) -> tuple[str, ...]:
    """Why the cells that carry an answer, best first, make it only a provisional one."""
    found, least = list[str](), min(carrying, key=lambda c: c.prompts)
    if least.prompts < ENOUGH:
        whose = "" if least.prompts == carrying[0].prompts else f" for {least.name}"
        few = f"only {counted(least.prompts, 'prompt')}{whose} ({ENOUGH} needed)"
        found.append(few if least.prompts else f"the number of prompts is unknown{whose}")
    fewest = min(carrying, key=lambda c: c.draws)
    if fewest.draws < FEWEST and fewest.draws != fewest.prompts:
        found.append(f"the interval is over {counted(fewest.draws, 'turn')} ({FEWEST} needed)")
    elif any(in_few_turns(c.row) for c in carrying):
        found.append(f"the requests were sent in fewer than {FEWEST} turns")
    if loads := [number_in(c.row, "load_average") or 0 for c in carrying if c.busy]:
        found.append(f"{BUSY} (load {max(loads):.0f})")
    found += [fault.doubt for fault in worst(fault for c in carrying for fault in c.unsteady)]
    if (share := looping(carrying)) > MOSTLY_LOOPS:
        found.append(f"{share:.0%} of the tokens are in loops, which are easy to draft")
    return tuple(found)


def per_turn(row: Row) -> int:
    """The least prompts of a turn that is one draw of a cell's intervals; 1 without turns."""
    return per_draw(int(number_in(row, "batch") or 1), number_in(row, "arrivals"), is_served(row))


def in_few_turns(row: Row) -> bool:
    """Whether requests in flight together are draws of their own, as there were few turns of them."""
    together = is_served(row) and (number_in(row, "batch") or 1) > 1 and number_in(row, "arrivals") is None
    return together and number_in(row, "draws") == number_in(row, "prompts")


def looping(carrying: Sequence[Candidate]) -> float:
    """The largest share of tokens in loops among some cells."""
    return max(number_in(c.row, "looping_share") or 0.0 for c in carrying)


def more_prompts(best: Candidate) -> int | None:
    """How many more prompts would make the interval exclude 1 if the speedup stays; None if unpredictable."""
    if best.draws < FEWEST or best.prompts < ENOUGH:
        return None
    enough = to_settle(best.interval, best.draws)
    return None if enough is None else max(math.ceil(enough / best.draws * best.prompts) - best.prompts, 1)


def how_to_settle(carrying: Sequence[Candidate], more: int | None, promise: str) -> tuple[str, str]:
    """How to settle the answer, in words, and as a command if the run's is known; empty if settled.

    `promise`: the opening words with the expected effect.
    """
    least = min(carrying, key=lambda c: c.prompts)
    prompts = max(ENOUGH, FEWEST * per_turn(least.row), least.prompts + (more or 0))
    kinds = {fault.kind for c in carrying for fault in c.unsteady}
    quiet, steady, eager = any(c.busy for c in carrying), bool(kinds - {TIER}), TIER in kinds
    short, machine = prompts > least.prompts, " and ".join(["quiet"] * quiet + ["steady"] * steady)
    loops = looping(carrying) > MOSTLY_LOOPS
    alike = not machine and not loops and not eager  # the same run is enough
    if not short and alike and min(c.draws for c in carrying) >= FEWEST:
        return "", ""
    words = promise + f" on a {machine} machine" * bool(machine) + " with shorter answers" * loops
    held = prompts_held(least.row) if short else None
    if held is not None and held < prompts:
        return f"{words}: the data set has only {counted(held, 'prompt')}; use one with at least {prompts}", ""
    shorter = max(int(number_in(least.row, "max_new_tokens") or 0) // 2, 16)
    changed: dict[str, int | str] = {"--max-new-tokens": shorter} if loops else {}
    limit = max(prompts, int(number_in(least.row, "limit") or 0))
    if short and alike and (command := resumed(carrying, limit)):
        return words, command
    changed |= ({"--limit": limit} if short else {}) | ({"--tier": "eager"} if eager else {})
    early = short and bool(text_in(least.row, "until_ci"))
    command = repeated(only("command", carrying), changed, early)
    same = "the same run" + " with" * bool(changed) + "".join(f" {name} {value}" for name, value in changed.items())
    return (words, command) if command else (f"{words}: {same}" + ", without --until-ci" * early, "")


def resumed(carrying: Sequence[Candidate], limit: int) -> str:
    """The command that continues their run up to a limit; empty if the run accepts no new limit.

    Batches and repetitions would interleave new prompts with earlier ones, `--until-ci` has already decided
    when to stop, and a draft that learns depends on earlier prompts.
    """
    run, before = only("run", carrying), min(number_in(c.row, "limit") or 0 for c in carrying)
    alone = all((number_in(c.row, name) or 1) == 1 for c in carrying for name in ("batch", "repeat"))
    if not run or not before or not alone or any(text_in(c.row, n) for c in carrying for n in ("until_ci", "carries")):
        return ""
    return shown(["specbench", "run", "--resume", run, *(["--limit", str(limit)] if limit > before else [])])


def only(name: str, carrying: Sequence[Candidate]) -> str:
    """The common value of a column; empty if they differ."""
    found = {text_in(c.row, name) for c in carrying}
    return found.pop() if len(found) == 1 else ""


def further(carrying: Sequence[Candidate], alone: bool) -> str:
    """The next command after a settled answer: a sweep if one K was measured `alone`, else the report; or ""."""
    words = command_words(only("command", carrying))
    if alone and words[1:2] == ["run"] and not has_option(words, "--resume") and carrying[0].constant:
        return shown(["specbench", "sweep-k", *without_option(words[2:], "--k")])
    run = only("run", carrying)
    return shown(["specbench", "report", run]) if run else ""


def prompts_held(row: Row) -> int | None:
    """The number of prompts in a cell's data set, if known: all were used, or the set is shipped."""
    if text_in(row, "status") == "ok" and not stopped(row):
        return int(number_in(row, "prompts") or 0) or None
    return shipped_rows(text_in(row, "dataset"))


def stopped(row: Row) -> bool:
    """Whether settings limited a finished cell's prompts, and not the end of its data set."""
    prompts, limit, goal = (number_in(row, name) or 0 for name in ("prompts", "limit", "until_ci"))
    if limit:
        if prompts >= limit:
            return True
    elif text_in(row, "dataset").partition(":")[0] in LONG:  # these sets can have any size
        return True
    bounds = (number_in(row, name) or math.nan for name in ("speedup", "speedup_low", "speedup_high"))
    return goal > 0 and prompts >= ENOUGH and half_width(Interval(*bounds)) <= goal


SAME = {
    "--limit": ("--limit", "--num-prompts", "-n", "--until-ci"),
    "--max-new-tokens": ("--max-new-tokens", "--max-tokens"),
    "--tier": ("--tier",),
}


def repeated(command: str, changed: Mapping[str, int | str], ends_early: bool = False) -> str:
    """The command line with changed options; empty if it cannot be repeated.

    `ends_early`: `--until-ci` would end it at the same point, so it is left out.
    """
    words = command_words(command)
    if not words or has_option(words, "--resume"):
        return ""
    if ends_early and not has_option(words, "--until-ci"):
        return ""  # the option is in a file
    for name, value in changed.items():
        for option in SAME[name]:
            words = without_option(words, option)
        words += [name, str(value)]
    return shown(words)


def command_words(command: str) -> list[str]:
    """The words of a measuring command line; empty if it is another, or has arguments that might not be options."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if words[:1] == ["specbench"] and set(words[1:2]) & MEASURING and "--" not in words else []


def shown(words: Sequence[str]) -> str:
    """The command line of some words; empty if a terminal would not show it unchanged."""
    found = shlex.join(words)
    return found if found == clean(found, LONGEST) else ""


def has_option(words: Sequence[str], option: str) -> bool:
    return without_option(words, option) != words


def without_option(words: Sequence[str], option: str) -> list[str]:
    """The words of a command without an option and its value, which may be joined (--limit=3, -n3)."""
    joined, kept = option if len(option) == 2 else f"{option}=", list[str]()
    rest = iter(words)
    for word in rest:
        if word == option:
            next(rest, None)
        elif not word.startswith(joined):
            kept.append(word)
    return kept
