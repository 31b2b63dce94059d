"""Hostile text through every sink: the journal keeps it exactly, nothing that shows it obeys it."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from rich.console import Console, RenderableType

from specbench.cli.app import end
from specbench.jobs.progress import Display
from specbench.judge import compare
from specbench.judge.matching import records_of
from specbench.metrics import RoundCounts
from specbench.results import documents
from specbench.results.cells import Cell
from specbench.results.documents import TokenView, TracedRound, TracedToken
from specbench.results.named_runs import LONGEST, csv_cell
from specbench.results.reading import read_run
from specbench.show import compare as shown
from specbench.show import run_output, token_view
from specbench.show.text import one_line
from tests.support.hostile import FORMULA, PAYLOADS, bars, commands, elements, harmless
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run


def cells_of(texts: Sequence[str], **changes: Any) -> list[Cell]:
    """Cells in which every text that can come from outside is one of `texts`; every second one in a sweep of two K."""
    found = []
    for n, text in enumerate(texts):
        spec = {"dataset": text, "target": text, "draft": text, "seed": n}
        resolved = {"rejected": text, "device_name": text, "dtype_resolved": text}
        names = {"error": text, "detail": text, "resolved": resolved, "status": "partial"}
        samples = [sample(text, category=text), sample(f"{text} {n}", (0, 3), category=text, turn=1)]
        found += [cell(*samples, k=k, **{**spec, **names, **changes}) for k in ((2, 4) if n % 2 else (4,))]
    return found


def write(parent: Path, cells: Sequence[Cell]) -> Path:
    return write_run(parent, cells, command=cells[0].error)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return cells_of(PAYLOADS)


@pytest.fixture(scope="module")
def folder(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hostile"), cells)


def screen(shown: RenderableType, colours: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=110, force_terminal=colours, color_system="truecolor", _environ={})
    console.print(shown)
    return file.getvalue()


# --- files ------------------------------------------------------------------------------------------------------------


def test_there_are_payloads_enough_and_those_without_anything_harmful_stay_as_they_are_in_a_csv() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) >= 60
    kept = [text for text in PAYLOADS if csv_cell(text) == text]
    assert {"NaN", "007", "שלום עולם", "C:\\x\\..\\y", "a,b", '"=1+1'} <= set(kept)


def test_the_journal_gives_back_exactly_what_was_measured(cells: list[Cell], folder: Path) -> None:
    run = read_run(folder)
    assert [replace(c, samples=tuple(c.samples)) for c in run.cells] == cells
    assert run.description["command"] == PAYLOADS[0]
    assert (folder / "journal.jsonl").read_bytes().isascii()
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(("name", "column"), [("results.csv", "error"), ("samples.csv", "category")])
def test_csv_files_run_nothing_and_read_alike_everywhere(
    cells: list[Cell], folder: Path, name: str, column: str
) -> None:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, strict=True))
    as_pandas = pd.read_csv(folder / name, dtype=str, keep_default_na=False)
    assert as_pandas.to_dict("records") == found
    texts = [c.error for c in cells for _ in (c.samples if column == "category" else [c])]
    assert [row[column] for row in found] == [csv_cell(text) for text in texts]
    numbers = set(found[0]) - {"dataset", "target", "draft", "error", "category", "prompt", "rejected"}
    bad = [v for row in found for k, v in row.items() if not v.isprintable() or (k not in numbers and FORMULA.match(v))]
    assert bad == []
    assert max(len(value) for row in found for value in row.values()) <= LONGEST + 1


def test_the_rounds_have_every_prompt(cells: list[Cell], folder: Path) -> None:
    rounds = pd.read_parquet(folder / "rounds.parquet")
    assert len(rounds) == sum(len(s.method.rounds) for c in cells for s in c.samples)
    assert all(prompt.isprintable() for prompt in rounds["prompt"])


# --- what `run` and `sweep` print -------------------------------------------------------------------------------------


@pytest.mark.parametrize("colours", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tables_and_remarks_steer_no_terminal(cells: list[Cell], colours: bool) -> None:
    rows = [c.row() for c in cells]
    tables = run_output.tables(rows, run_output.Shown(explain=True), screen=True)
    found = "".join(screen(table.drawn(), colours) for table in tables)
    found += "\n".join(map(one_line, run_output.notes(rows)))
    assert commands(found) == []
    assert "[bold]x[/nope]" in found
    assert ":skull: :warning:" in found


def test_categories_are_text_in_their_tables() -> None:
    samples = [sample(f"{text} {n}", category=text) for text in PAYLOADS for n in (1, 2)]
    every = [cell(*samples, method=name) for name in ("chain", "block", "jacobi", "lookahead", "maxgram")]
    rows, categories = [c.row() for c in every], [row for c in every for row in c.category_rows()]
    for table in run_output.category_tables(rows[:1], categories):
        assert commands(screen(table.drawn(), colours=True)) == []
    for table in run_output.category_tables(rows, categories):
        _, _, *lines = table.markdown().splitlines()
        assert set(bars("\n".join(lines))) == {len({s.category for s in samples}) + 2}


@pytest.mark.parametrize("style", ["json", "jsonl"])
def test_json_has_the_texts_exactly(cells: list[Cell], style: str) -> None:
    found = run_output.rendered([c.row() for c in cells], style)
    strict = partial(json.loads, parse_constant=pytest.fail)
    rows = strict(found) if style == "json" else [strict(line) for line in found.splitlines()]
    assert found.isascii()
    assert [(row["dataset"], row["error"]) for row in rows] == [(c.spec.dataset, c.error) for c in cells]


@pytest.mark.slow
def test_markdown_has_the_structure_that_harmless_text_has(cells: list[Cell]) -> None:
    render = MarkdownIt("commonmark", {"html": True}).enable("table").render
    ours, theirs = (run_output.rendered([c.row() for c in some], "md") for some in (cells, cells_of(harmless())))
    assert commands(ours) == []
    assert bars(ours) == bars(theirs)
    assert elements(render(ours)) == elements(render(theirs))


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_steers_no_terminal(cells: list[Cell], terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=110, _environ={})
    with Display(console, quiet=False, now=iter(range(10**6)).__next__) as display:
        for one in cells[::2]:
            display.begin([replace(one, samples=())], 2)
            display.turn({one.spec: one.samples[:1]})
            display.end(one)
    shown = file.getvalue()
    for own in ("\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A", "\r"):  # rich hides the cursor and redraws its lines
        shown = shown.replace(own, "")
    assert commands(shown) == []
    assert ":skull: :warning:" in shown


@pytest.mark.parametrize("text", PAYLOADS, ids=range(len(PAYLOADS)))
def test_an_error_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        end(text, 2)
    (line, rest) = capsys.readouterr().err.split("\n")
    assert line.startswith("specbench: ")
    assert (commands(line), rest) == ([], "")


# --- what `compare` prints and writes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> compare.Comparison:
    """A base and a run with fewer cells, some of which failed: every outcome that repeats a text has one."""
    measured = cells_of(PAYLOADS, status="ok")
    failed = [replace(c, status="oom") if n % 21 else c for n, c in enumerate(measured) if n % 4]
    base, new = (write(tmp_path_factory.mktemp("run"), cells) for cells in (measured, failed))
    return compare.compare_runs([records_of(read_run(base))], [records_of(read_run(new))], compare.Policy())


@pytest.mark.slow
@pytest.mark.parametrize("colours", [True])
def test_a_comparison_steers_no_terminal(compared: compare.Comparison, colours: bool) -> None:
    assert compared.missing
    assert {"REGRESSION", "ok"} <= {row.outcome for row in compared.findings}
    assert commands(screen(shown.table(compared, 0.99), colours)) == []
    assert commands("\n".join(map(shown.sentence_of, compared.findings))) == []


def test_the_summary_of_a_job_is_one_table_without_links_or_html(compared: compare.Comparison) -> None:
    text = shown.markdown(compared, 0.99)
    found = elements(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    assert {name for (name, *_) in (f for f in found if isinstance(f, tuple))} <= {
        "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li",
    }  # fmt: skip
    assert set(bars(text)) == {9}
    assert commands(text) == []


@pytest.mark.slow
def test_other_formats_parse_and_hold_no_command(compared: compare.Comparison, folder: Path) -> None:
    suite = ElementTree.fromstring(shown.junit(compared).split("\n", 1)[1])[0]
    assert len(suite) == len(compared.findings)
    rows = json.loads(shown.as_json(compared), parse_constant=pytest.fail)["rows"]
    assert len(rows) == len(compared.findings)
    points = json.loads(shown.history(records_of(read_run(folder))), parse_constant=pytest.fail)
    assert not [p for p in points if set("<>[]()`|@\\\"'") & set(p["name"]) or not p["name"].isprintable()]
    assert not [p for p in points if any(link in p["name"] for link in ("https://", "www."))]


# --- what `trace` shows -----------------------------------------------------------------------------------------------


def traced(whole: Sequence[str]) -> TokenView:
    """A decode whose prompt, settings and tokens are the texts, a page of each at most."""
    texts = [text[:5000] for text in whole]
    kinds = ("accepted", "rejected", "unused", "correction", "bonus")
    tokens = tuple(TracedToken(kinds[n % 5], n, text, "", 0.5, 0.25) for n, text in enumerate(texts))  # type: ignore[arg-type]
    counts = RoundCounts(4, 2, 1, 2, (0.9, 0.4))
    return TokenView(" ".join(texts), {"target": texts[0], "K": 3}, (TracedRound(tokens, counts),))


def test_a_trace_is_a_page_with_the_structure_that_harmless_text_has() -> None:
    ours, theirs = traced(PAYLOADS), traced(harmless())
    assert elements(token_view.page(ours)) == elements(token_view.page(theirs))
    token_view.page(ours).encode()
    assert documents.trace_from_json(documents.trace_json(ours)) == ours


@pytest.mark.parametrize("marks", [False, True])
def test_a_trace_steers_no_terminal(marks: bool) -> None:
    for rounds in (False, True):
        shown = screen(token_view.terminal(traced(PAYLOADS), marks=marks, rounds=rounds), colours=True)
        assert [line for line in commands(shown.replace("\t", "")) if "::" not in line] == []
