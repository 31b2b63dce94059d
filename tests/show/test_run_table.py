"""How results look: what the table shows and hides, and formats that parse back."""

import csv
import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from specbench.results.cells import Cell, Losslessness
from specbench.show.cell_text import cell_text
from specbench.show.headings import shared_settings
from specbench.show.run_notes import notes
from specbench.show.run_output import FORMATS, Shown, print_run, rendered
from specbench.show.run_table import run_table
from tests.support.measured import cell, sample

TWO = (sample("p1", (4, 2)), sample("p2", (0, 2)))
HOSTILE = (
    "[/]",
    "[/bold] x",
    "[link=http://x]x[/link]",
    "\x1b[31mred",
    "\x1b]8;;http://x\x07",
    "\udcff",
    "\x9b2J",
    "a\rb",
)


def rows(*cells: Cell) -> list[dict[str, Any]]:
    return [c.row() for c in cells]


def printed(*cells: Cell, style: str = "table", explain: bool = False) -> str:
    file = io.StringIO()
    print_run(rows(*cells), style, Console(file=file, width=160), Shown(explain=explain))
    return file.getvalue()


def explained(*cells: Cell) -> str:
    """The numbers of a few cells side by side, which stand below their one table."""
    text = printed(*cells, explain=True)
    return text[text.index("big ← ", text.index("big ← ") + 1) :]


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_shows_the_decision_first_and_with_its_interval() -> None:
    text = explained(cell(*TWO))
    line = next(line for line in text.splitlines() if "speedup" in line)
    assert "1.538×" in line
    assert "measured: total baseline" in line
    interval = next(line for line in text.splitlines() if "95 % interval" in line).split("│")[2].strip()
    assert interval == cell_text(rows(cell(*TWO))[0], "speedup_interval") != "–"


def test_prediction_stands_beside_measurement() -> None:
    labels = [line.split("│")[1].strip() for line in explained(cell(*TWO)).splitlines() if line.startswith("│")]
    at = labels.index("speedup")
    assert labels[at : at + 5] == ["speedup", "95 % interval", "predicted", "calibrated", "end to end"]


def test_what_all_cells_share_stands_above_and_not_in_the_table() -> None:
    table = explained(cell(*TWO, temperature=0.5), cell(*TWO, dataset="articles", temperature=0.5))
    title, *body = table.splitlines()
    assert "big ← small" in title
    assert "temperature 0.5" in title
    assert "eager · abacus" in title
    assert not [line for line in body if line.startswith("│") and "temperature" in line]


@pytest.mark.parametrize(("setting", "values"), [("temperature", (0.0, 0.7)), ("method", ("chain", "x"))])
def test_what_varies_stands_over_its_column_and_not_above_the_table(setting: str, values: tuple[Any, Any]) -> None:
    title, *body = explained(*(cell(*TWO, **{setting: value}) for value in values)).splitlines()
    heading = next(line for line in body if setting in line)
    assert all(f"{setting} {value}" in heading for value in values)
    assert f"{setting} {values[0]}" not in title


def test_a_single_cell_varies_in_nothing() -> None:
    title, _, heading, *_ = explained(cell(*TWO)).splitlines()
    assert heading.split("┃")[2].strip() == "code"
    assert "chain · K 4 · float32 · temperature 0.0 · tokens 128" in title


def test_a_failed_cell_stays_in_the_table_with_dashes_and_its_reason_below() -> None:
    text = explained(cell(*TWO), cell(dataset="articles", status="oom", error="out of memory: try less"))
    assert "articles, chain, K 4: oom: out of memory: try less" in text
    speedups = next(line for line in text.splitlines() if "speedup" in line).split("│")
    assert (speedups[2].strip(), speedups[3].strip()) == ("1.538×", "–")


def test_notes_say_what_a_reader_must_know_besides() -> None:
    few = rows(cell(*TWO, resolved={"rejected": "3 too long"}))
    assert notes(few)[0] == "code: left out 3 too long"
    assert "code: 2 prompts: below 20" in notes(few)[-1]
    numeric = cell(*TWO, lossless=Losslessness("numeric", 1, 2, 5, 1e-6, 2e-6))
    assert any("1 of 2 outputs part from the baseline's at near-ties" in note for note in notes(rows(numeric)))


@pytest.mark.parametrize(("goal", "said"), [(0.9, "stopped after 3 prompts"), (0.001, "had no more prompts after 3")])
def test_a_run_until_an_interval_is_narrow_says_what_it_got(goal: float, said: str) -> None:
    samples = [sample(f"p{n}", accepted) for n, accepted in enumerate([(4, 2), (4, 1), (3, 2)])]
    (note,) = [line for line in notes(rows(cell(*samples, until_ci=goal))) if "asked for" in line]
    assert note.startswith(f"code: {said}")
    assert f"asked for ± {goal:.1%}" in note
    assert not [line for line in notes(rows(cell(*samples))) if "asked for" in line]


def test_numbers_have_the_digits_that_mean_something() -> None:
    row = {
        "speedup": 1.23456,
        "tokens_per_second": 1234.56,
        "alpha": 0.7,
        "alpha_low": 0.6,
        "alpha_high": 0.8,
        "c": None,
    }
    shown = [cell_text(row, c) for c in ("speedup", "tokens_per_second", "alpha", "alpha_interval", "c", "v")]
    assert shown == ["1.235×", "1234.6", "0.700", "0.600 – 0.800", "–", "–"]
    assert cell_text({"speedup_low": math.nan, "speedup_high": 2.0}, "speedup_interval") == "–"


def test_a_run_without_a_draft_says_so() -> None:
    assert shared_settings(rows(cell(*TWO, draft=None)), []).startswith("big ← no draft")


# --- formats ----------------------------------------------------------------------------------------------------------

MIXED = (cell(*TWO), cell(TWO[0], dataset="articles", k=2), cell(dataset="third", status="nan", error="gave NaN"))


def test_csv_parses_back() -> None:
    found = list(csv.DictReader(io.StringIO(printed(*MIXED, style="csv"))))
    assert [(r["dataset"], r["status"]) for r in found] == [("code", "ok"), ("articles", "ok"), ("third", "nan")]
    assert float(found[0]["speedup"]) == rows(*MIXED)[0]["speedup"]
    assert found[1]["speedup_low"] == found[2]["speedup"] == found[2]["acceptance_at_1"] == ""


def test_json_parses_back_without_nan() -> None:
    found = json.loads(printed(*MIXED, style="json"), parse_constant=pytest.fail)
    assert found[0]["c"] == rows(*MIXED)[0]["c"]
    assert found[1]["speedup_low"] is None
    assert list(found[0]) == list(rows(*MIXED)[0])


def test_jsonl_has_one_object_per_line() -> None:
    parsed = [json.loads(line, parse_constant=pytest.fail) for line in printed(*MIXED, style="jsonl").splitlines()]
    assert parsed == json.loads(printed(*MIXED, style="json"))


def test_markdown_has_the_answers_then_a_table_with_one_line_per_cell_then_the_notes() -> None:
    text = printed(*MIXED, style="md")
    lines = text.splitlines()
    grid = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert grid[0][:4] == ["data", "K", "speedup", "95 % interval"]
    assert [line[:3] for line in grid[2:]] == [
        ["code", "4", "1.538×"],
        ["articles", "2", "2.051×"],
        ["third", "4", "nan"],
    ]
    assert lines[0].startswith("**UNCLEAR — code: K = 4 may be faster or slower: 1.54× (")
    assert text.index("**UNCLEAR") < text.index("| data |") < text.index("- third, chain, K 4: nan: gave NaN")
    assert not set(text) & {"\\"}, "nothing of ours needs an escape"


def test_markdown_can_be_explained_too() -> None:
    text = rendered(rows(cell(*TWO)), "md", Shown(explain=True))
    assert "| tokens per round |" in text
    assert "from the formula to the measurement" in text


def test_a_bar_in_a_name_does_not_split_a_column_of_markdown() -> None:
    assert "| a\\|b |" in rendered(rows(cell(*TWO), cell(*TWO, dataset="a|b")), "md")


# --- hostile text -----------------------------------------------------------------------------------------------------


def hostile(text: str) -> Cell:
    """A cell whose every text came from outside."""
    resolved = {"rejected": text, "device_name": text}
    return cell(*TWO, dataset=text, target=text, status="partial", error=text, resolved=resolved)


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_crashes_a_format_or_commands_a_terminal(style: str, text: str) -> None:
    output = printed(hostile(text), cell(*TWO), style=style)
    assert all(line.isprintable() for line in output.split("\n"))
    output.encode()


def test_markup_is_shown_and_not_obeyed() -> None:
    assert "[bold]x" in printed(cell(*TWO, dataset="[bold]x"))


def test_json_keeps_the_text_as_it_was() -> None:
    assert json.loads(printed(hostile("\x1b[31mred"), style="json"))[0]["dataset"] == "\x1b[31mred"


def test_the_table_is_one_object_per_run() -> None:
    assert run_table(rows(cell(*TWO))).renderables


def test_what_a_round_drafts_stands_below_the_cost_of_one_token() -> None:
    """c × K: of a head that drafts in one pass, c alone says nothing about another K."""
    (row,) = rows(cell(*TWO))
    assert cell_text(row, "c_round") == f"{row['c'] * row['drafted_per_round']:.3f}" == "0.400"
    assert cell_text({**row, "c": None}, "c_round") == "–"
    labels = [line.split("│")[1].strip() for line in explained(cell(*TWO)).splitlines() if line.startswith("│")]
    assert labels[labels.index("c") + 1] == "of a round"
