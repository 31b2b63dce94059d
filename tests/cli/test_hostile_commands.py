"""Hostile data sets, file names and results through the commands as a user calls them."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from specbench.cli import app
from specbench.data.loading import load_prompts
from specbench.errors import UsageError
from specbench.results.documents import trace_json
from specbench.show.report.page import write_report
from specbench.wording import clean
from tests.cli.test_hostile import traced, write
from tests.support.frontdoor import Command, Outcome
from tests.support.hostile import PAYLOADS, bars, commands, elements, harmless
from tests.support.measured import cell, sample

NAME = "=1+1 [b]x[n] <img src=x onerror=1> `|` ##[error] {0}\x1b[31m\x9b2J\u202e\n \udcff.jsonl"
RUN = ("--max-new-tokens", "4", "--k", "2", "--warmup", "0")


def data(folder: Path) -> Path:
    """A data set whose ids, categories and prompts are the payloads, under a name that is one itself."""
    rows = [
        {"id": text if n % 2 else f"{n}{text}", "category": text, "prompt": f"w{n % 40} w2 {text}"}
        for n, text in enumerate(PAYLOADS)
    ]
    path = folder / NAME
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def ran(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One run on all of them."""
    place, out, err = tmp_path_factory.mktemp("run"), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(place)
        patch.setattr(sys, "argv", ["specbench", "run", *pair.options, "--dataset", f"jsonl:{data(place)}", *RUN])
        patch.setattr(sys, "excepthook", sys.excepthook)
        with pytest.raises(SystemExit) as ended:
            app.main()
    return Outcome(int(ended.value.code or 0), out.getvalue(), err.getvalue(), place)


@pytest.mark.slow
def test_a_run_on_hostile_data_measures_it(ran: Outcome) -> None:
    assert (ran.code, commands(ran.out), commands(ran.err)) == (0, [], [])
    samples = ran.table("samples.csv")
    (row,) = ran.table()
    assert int(row["prompts"]) == len(samples) > 0.9 * len(PAYLOADS)
    assert row["rejected"] == "4 not text, 3 too long"
    assert row["dataset"] == clean(f"jsonl:{ran.cwd / NAME}", 300)
    assert [s.prompt for s in ran.samples()] == [clean(s.prompt) for s in ran.samples()]
    assert {path.name for path in ran.cwd.iterdir()} == {NAME, "results"}


@pytest.mark.slow
@pytest.mark.parametrize("style", ["csv", "json", "jsonl", "md"])
def test_every_format_of_a_run(pair: Any, command: Command, tmp_path: Path, style: str) -> None:
    path = data(tmp_path)
    found = command("run", *pair.options, "--dataset", f"jsonl:{path}", "--limit", "2", "--format", style, *RUN)
    assert (found.code, commands(found.out, style), commands(found.err)) == (0, [], [])
    if style.startswith("json"):
        assert json.loads(found.out, parse_constant=pytest.fail)
    elif style == "md":
        assert_inert(found.out)


FORMATS = [
    *(("compare", style) for style in ("table", "md", "json", "junit", "gha")),
    *(("predict", style) for style in ("table", "csv", "json", "jsonl", "md")),
    *(("verdict", style) for style in ("table", "md", "json")),
]


def assert_inert(markdown: str) -> None:
    """Nothing in it but paragraphs, lists and whole tables."""
    found = elements(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))
    names = {found[0] for found in found if isinstance(found, tuple)}
    assert names <= {"h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li"}
    assert len(set(bars(markdown))) <= 1


def arguments(name: str, path: Path) -> Sequence[object]:
    return {"compare": (path, path), "predict": ("--from-run", path), "verdict": (path,)}[name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "style"), FORMATS)
def test_commands_that_read_a_run(ran: Outcome, command: Command, name: str, style: str) -> None:
    found = command(name, *arguments(name, ran.folder), "--format", style)
    assert (found.code, commands(found.out, style), commands(found.err)) == (0, [], [])
    if style == "md":
        assert_inert(found.out)


@pytest.mark.slow
def test_the_summary_of_a_job(ran: Outcome, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert command("compare", "-q", ran.folder, ran.folder).code == 0
    assert_inert((tmp_path / "summary.md").read_text())


# --- names of files ---------------------------------------------------------------------------------------------------


def usable(name: str) -> bool:
    """Whether a file can be called so."""
    try:
        return 0 < len(os.fsencode(name)) < 200 and not {"/", "\0"} & set(name) and set(name) != {"."}
    except UnicodeEncodeError:
        return False


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    read = 0
    for name in filter(usable, PAYLOADS):
        (tmp_path / name).write_text('{"prompt": "x"}\n')
        load = partial(load_prompts, f"jsonl:{tmp_path / name}", lambda text: [1], limit=None, seed=0, longest=None)
        if "::" in name:
            with pytest.raises(UsageError) as refused:
                load()
            assert commands(str(refused.value)) == []
        else:
            assert (load().name, len(load().prompts)) == (f"jsonl:{tmp_path / name}", 1)
            read += 1
    assert read >= 60


# --- the report -------------------------------------------------------------------------------------------------------


def outside_of_figures(found: Sequence[object]) -> list[object]:
    """The elements of a page but for those in its figures, where the width of a word decides on ticks and lines."""
    depth, kept = 0, []
    for one in found:
        depth -= one == "svg"
        kept += [] if depth else [one]
        depth += isinstance(one, tuple) and one[0] == "svg"
    return kept


def reported(parent: Path, texts: Sequence[str]) -> list[object]:
    """The elements of the report on a run in which every text that can come from outside is one of the texts."""
    every = " ".join(text[:300] for text in texts)
    names = {"dataset": every, "target": every, "draft": every, "status": "partial", "error": every}
    resolved = {"rejected": every, "device_name": every, "dtype_resolved": every}
    samples = [sample(f"p{n}", category=text, turn=n) for n, text in enumerate(texts)]
    failed = {"status": "error", "resolved": {"rejected": "", "device_name": ""}}
    cells = [cell(*samples, k=k, **names, resolved=resolved) for k in (2, 4)]
    cells += [cell(dataset=text, target=text, error=text, seed=n, **failed) for n, text in enumerate(texts)]
    folder = write(parent, cells)
    (folder / "trace.json").write_text(trace_json(traced(texts)))
    return elements(write_report([folder], png=False).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_report_has_the_elements_that_harmless_text_has(tmp_path: Path) -> None:
    ours, theirs = reported(tmp_path / "a", PAYLOADS), reported(tmp_path / "b", harmless())
    assert outside_of_figures(ours) == outside_of_figures(theirs)
    assert set(ours) == set(theirs)
