"""Nothing is cut on a narrow terminal: every table, on a pseudo-terminal of 60, 80, 100 and 120 columns."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from specbench.cli.reading import predict
from specbench.jobs import progress as panel
from specbench.jobs.output import Output, say
from specbench.jobs.run import Outcome, Terminal, say_more, say_where
from specbench.measure.fit import Needed
from specbench.models.execution.compiled import COMPILING
from specbench.results.documents import About
from specbench.show import run_output
from specbench.show.documents import memory_table
from specbench.show.fitting import COMMAND, Fitted, draw, screen
from specbench.show.run_output import Shown
from specbench.show.table import print_table
from specbench.theory.memory import Demand, Fit, Part
from tests.show import scenes
from tests.show.scenes import LLAMAS, PAIR
from tests.support.cases import quick_or_slow
from tests.support.measured import cell
from tests.support.terminals import faults, on_terminal, specbench

WIDE = 1000  # columns: all the room that any table here wants
BASELINE = Path(__file__).parents[2] / "results" / "baseline"
Row = dict[str, Any]


def searched() -> None:
    """As `skip-layers` shows its steps: records of short words and numbers."""
    row: Row = {"step": "early exit 25 %", "layers": "target[0:4,6,9:12]", "kept": 8, "alpha": "0.512", "c": "0.512"}
    row |= {"k": 4, "speedup_predicted": "1.234", "alpha_held_out": "0.498", "speedup_held_out": "1.201"}
    print_table("steps of the search", [row, row | {"step": "without layer 7"}])


def of_a_run() -> None:
    predict(from_run=BASELINE)


def live() -> None:
    """The panel, while a sweep over methods with long names goes on."""
    methods = ("chain", "prompt-lookup", "early-exit-shared", "cascade-horizontal", "cascade-vertical")
    cells = [cell(*PAIR, method=name, k=k) for name in methods for k in (2, 16)]
    Console().print(panel.table({one.spec: panel.Rolling.of(one.samples) for one in cells}))


def checked() -> None:
    """What a pair needs, some of it of long names, and the memory that it takes."""
    models = [Needed(role, name, f"snapshots/{name}", "here", 16_000_000_000) for role, name in LLAMAS.items()]
    data = Needed("data set", "xsum", "hub", "to fetch", 5, "hf download")
    print_table("what it needs", [one.line for one in (*models, data)])
    parts = [Part(role, "packed weights", 16_000_000_000) for role in LLAMAS]
    print_table("memory of cuda", memory_table(Fit("cuda", Demand(parts, 0), 80_000_000_000, 10**9)))
    say(Console(), ["memory is just enough, by an estimate that may be off by 10 %: about 32 of 80 GB on cuda"])


def listed() -> None:
    """Runs with long names, of several data sets and methods."""
    row: Row = {"name": "20260101T000000Z_Llama-3.1-8B-Instruct_Llama-3.2-1B-Instruct_aaaa1111", "cells": "12 of 48"}
    row |= {
        "answer": "YES, PROVISIONAL, UNCLEAR",
        "began": "2026-01-01 00:00",
        "pair": " ← ".join(LLAMAS.values()),
        "data": "code, articles, xsum and 3 more",
    }
    row |= {"methods": "chain, block, prompt-lookup and 21 more", "K": "4"}
    print_table("runs in results, the latest last", [row, row | {"name": "bbbb2222"}])


OTHERS: dict[str, Callable[[], None]] = {
    "skip-layers": searched, "predict from a run": of_a_run, "live panel": live, "list": listed, "check": checked,
}  # fmt: skip
COMMANDS = {
    "methods": ("methods",),
    "config show": ("config", "show", "--method", "chain", "--k", "1-8"),
    "models list": ("models", "list"),
    "predict": ("predict", "--alpha", 0.7, "--c", 0.05, "--k", "1-12"),
}
EXPLAINED = ("data sets", "methods by category", "schedules", "servers")


@cache
def whole(name: str) -> str:
    """A picture that nothing narrows."""
    return picture(name, WIDE)


def picture(name: str, width: int) -> str:
    if name in COMMANDS:
        return on_terminal(width, specbench(*COMMANDS[name]))
    if name in OTHERS:
        return on_terminal(width, OTHERS[name])
    if name in scenes.DOCUMENTS:
        return scenes.drawn(scenes.DOCUMENTS[name]()[0], width)
    return scenes.run_tables(scenes.RUNS[name](), width, terminal=True, explain=name in EXPLAINED)


# --- every table on every terminal ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", quick_or_slow((60, 80, 100, 120), lambda width: width == 60))
@pytest.mark.parametrize(
    "name", [*(name for name in scenes.RUNS if name != "hostile"), *scenes.DOCUMENTS, *OTHERS, *COMMANDS]
)
def test_nothing_is_cut(name: str, width: int) -> None:
    understood = {"lost: name"} if name in ("methods", "models list", "list", "check") else set()
    found = faults(picture(name, width), width, whole(name))
    assert {fault for fault in found if not COMMAND.search(fault)} <= understood


CIRCLES: Row = {"looping_share": 0.72, "prompts_looping": 18, "longest_cycle": 35, "alpha_outside_loops": 0.2}


def whole_screen() -> None:
    """All that `specbench run` leaves on a terminal: the shipped pair on two data sets, under load, text in circles."""
    done = [cell(*PAIR, dataset=name, k=2) for name in ("code", "articles")]
    terminal = Terminal(Output())
    terminal.note(f"tier compile: {COMPILING}")
    shown = Shown("specbench run", "67981ce0")
    run_output.print_run([one.row() | CIRCLES | {"load_average": 9.0} for one in done], "table", screen(), shown)
    name = "20261123T103032Z_demo_demo-draft_67981ce0"
    outcome = Outcome(Path("results") / name, About(), done, None)
    say_more(outcome, terminal.output)
    say_where(outcome, terminal.output)


@pytest.mark.parametrize("width", quick_or_slow((60, 80, 100, 120), lambda width: width == 80))
def test_the_screen_of_a_run_is_no_longer_than_a_glance(width: int) -> None:
    text = on_terminal(width, whole_screen)
    found = faults(text, width, on_terminal(WIDE, whole_screen))
    assert [fault for fault in found if not COMMAND.search(fault)] == []  # those the terminal folds, to be copied whole
    assert "UNCLEAR (code). With K = 2, decoding may be faster or slower: 1.54×" in " ".join(text.split())
    assert text.count("Why: a round emits 3.00 tokens and takes 19.5 ms, as long as 1.95") == 2 or width < 80
    assert all(part in text for part in ("Not certain yet: ", "next: ", " the worst of 2: ", "why: ", "results: "))
    assert len(text.splitlines()) <= (34 if width >= 80 else 44)


# --- the controls -----------------------------------------------------------------------------------------------------


def plain(*headings: str) -> Table:
    """A table as rich prints it by itself."""
    table = Table(*headings)
    table.add_row(*(f"{n}.234 – {n}.567" for n in range(len(headings))))
    return table


def test_what_rich_narrows_what_the_terminal_folds_and_what_fails_on_it_is_caught() -> None:
    headings = [f"heading{n}" for n in range(8)]
    wide, narrow = (on_terminal(width, lambda: Console().print(plain(*headings))) for width in (WIDE, 60))
    assert {found.split(":")[0] for found in faults(narrow, 60, wide)} == {"cut", "broken", "lost"}
    fitted = on_terminal(60, lambda: Console().print(Fitted(plain(*headings))))
    assert faults(fitted, 60, wide) == []
    folded = on_terminal(60, lambda: print("x" * 61))
    assert [found.split(":")[0] for found in faults(folded, 60, folded)] == ["wider than 60"]
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        on_terminal(60, lambda: 1 // 0)


# --- how a table comes apart ------------------------------------------------------------------------------------------


def drawn(fitted: Fitted, width: int, terminal: bool = True) -> list[str]:
    file = io.StringIO()
    draw(Console(file=file, width=width, force_terminal=terminal, color_system=None), fitted)
    return file.getvalue().splitlines()


def grid(columns: int, **changes: Any) -> Fitted:
    """Names and numbers under headings of two words."""
    table = Table("name", *(f"heading {n:02}" for n in range(columns)), box=None)
    for row in ("first", "second"):
        table.add_row(row, *(f"{row[0]}{n}" for n in range(columns)))
    return Fitted(table, **changes)


def parts(fitted: Fitted, width: int) -> list[list[str]]:
    """The numbers of the first row in every part."""
    return [line.split()[1:] for line in drawn(fitted, width) if "first" in line]


def test_every_part_repeats_the_key_all_are_about_as_wide_and_columns_may_belong_together() -> None:
    assert parts(grid(9), 60) == [["f0", "f1", "f2", "f3", "f4"], ["f5", "f6", "f7", "f8"]]
    assert parts(grid(7), 45) == [["f0", "f1", "f2", "f3"], ["f4", "f5", "f6"]]
    assert list(map(len, parts(grid(9, together=3), 64))) == [6, 3]
    assert parts(grid(7, keys=2), 45) == [["f0", "f1", "f2", "f3"], ["f0", "f4", "f5", "f6"]]


def test_headings_wrap_at_their_words_before_a_table_comes_apart() -> None:
    lines = [line.split() for line in drawn(grid(4), 44)]
    assert lines[:2] == [["heading"] * 4, ["name", "00", "01", "02", "03"]]
    assert lines[2] == ["first", "f0", "f1", "f2", "f3"]


def test_where_there_is_no_terminal_no_table_comes_apart() -> None:
    (line,) = [line for line in drawn(grid(12), 60, terminal=False) if "first" in line]
    assert len(line.split()) == 13
    assert len(parts(grid(12), 60)) > 1


def test_a_long_name_is_folded_before_a_number_is_and_where_nothing_fits_every_character_is_there() -> None:
    table = Table("name", "95 % interval", box=None)
    table.add_row("n" * 90, "1.234 – 5.678")
    lines = drawn(Fitted(table), 40)
    assert sum(line.count("n") for line in lines[1:]) == 90
    assert sum("1.234 – 5.678" in line for line in lines) == 1
    for width in (12, 15, 20, 30):
        text = "".join(drawn(Fitted(plain("one", "two")), width))
        assert all(text.count(digit) >= 2 for digit in "2567")
        assert "…" not in text
