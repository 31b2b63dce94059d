"""What an audit proved of a deployment holds for its runs: numbers of one that failed are shown nowhere."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.jobs import run as jobs
from specbench.jobs.output import Output
from specbench.jobs.progress import Display
from specbench.library.result import load_run
from specbench.results.documents import About, deployment, failed_audits, fault_of
from specbench.results.named_runs import as_text
from specbench.results.reading import edited, read_run
from tests.show.test_report_page import page_of
from tests.support.frontdoor import Command
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run

NAME = "20260101T000000Z_audit_big"
SERVER = {
    "engine": "vllm-serve",
    "engine_notes": "vllm 0.32.0; started with --speculative-config {}; lengths of prompts",
}
WORDS = f"it fails the audit {NAME} (short prompts: another token)"


def row(**changes: Any) -> dict[str, Any]:
    one = cell(sample(), resolved=SERVER, method="chain", backend="vllm-serve", spec_config="ngram", k=4)
    return {**one.row(), **changes}


def audit(parent: Path, of: dict[str, Any], answer: str = "NOT LOSSLESS", name: str = NAME, **changes: Any) -> Path:
    """The certificate of an audit in a folder of results."""
    file = parent / name / "audit.json"
    file.parent.mkdir(parents=True)
    fault = {"kind": "fault", "cell": "short prompts", "what": "another token"}
    body = {"schema": "specbench audit 1", "answer": answer, "requests": 100, "judged": True, "unfinished": False}
    body |= {"deployment": deployment(of), "findings": [{"kind": "numeric"}, fault]}
    file.write_text(json.dumps({**body, **changes}))
    return file


# --- the same deployment ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"k": 2, "batch": 8, "dataset": "articles", "temperature": 1.0, "tier": "graph"}, True),
        ({"engine_notes": "a note; vllm 0.32.0; started with other words"}, True),
        ({"engine_notes": "vllm 0.33.0; started with --speculative-config {}"}, False),
        ({"spec_config": "suffix"}, False),
        ({"server_args": "--max-model-len 4096"}, False),
        ({"spec_args": "--enforce-eager"}, False),
        ({"target": "bigger"}, False),
        ({"dtype": "bfloat16"}, False),
        ({"method": "baseline"}, False),
    ],
)
def test_a_deployment_is_its_engine_and_what_starts_it(tmp_path: Path, changes: dict[str, Any], same: bool) -> None:
    audit(tmp_path, row())
    assert fault_of(row(**changes), failed_audits(tmp_path)) == (WORDS if same else "")


def test_a_server_is_known_by_its_url_and_model(tmp_path: Path) -> None:
    audit(tmp_path, row(url="http://localhost:8000/v1/"))
    failed = failed_audits(tmp_path)
    assert fault_of(row(url="http://localhost:8000", k=9, engine_notes=""), failed)
    assert not fault_of(row(url="http://localhost:8001"), failed)
    assert not fault_of(row(url="http://localhost:8000", target="other"), failed)


def test_a_table_names_the_same_deployment_as_a_row() -> None:
    one = row(spec_args="--spec-type ngram-mod", server_args="--parallel 4", engine_option=None)
    assert deployment(as_text([one])[0]) == deployment(one)
    here = row(backend=None, spec_config=None, engine="native", engine_notes="", specbench="1", torch="2")
    assert deployment(here)["version"] == "1 2 "


def test_a_longer_audit_without_a_fault_clears_a_deployment(tmp_path: Path) -> None:
    audit(tmp_path, row())
    later = "20260102T000000Z_audit_big"
    for passing in ({"requests": 99}, {"unfinished": True}, {"judged": False}, {"deployment": {}}):
        file = audit(tmp_path, row(), "LOSSLESS as far as seen", later, **passing)
        assert failed_audits(tmp_path)
        file.unlink()
        file.parent.rmdir()
    audit(tmp_path, row(), "NUMERIC", later)
    assert failed_audits(tmp_path) == []
    audit(tmp_path, row(), name="20260103T000000Z_audit_big")
    assert fault_of(row(), failed_audits(tmp_path)).startswith("it fails the audit 20260103")


@pytest.mark.parametrize(
    "text", ["", "[", "[]", '{"schema": "specbench audit 1"}', '{"schema": "specbench audit 1", "deployment": 3}']
)
def test_other_files_are_no_audits(tmp_path: Path, text: str) -> None:
    audit(tmp_path, row()).write_text(text)
    assert failed_audits(tmp_path) == []


# --- what is printed of its runs --------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a fast arm that fails an audit, and of a slower one."""
    served = {"resolved": SERVER, "backend": "vllm-serve", "k": 4}
    some = [
        [sample(f"p{n}", accepted=accepted) for n in range(8)] for accepted in ((4, 4, 4, 4), (2, 2, 2, 2, 2, 2, 2))
    ]
    cells = [cell(*one, spec_config=arm, **served) for arm, one in zip(("ngram", "suffix"), some, strict=True)]
    audit(tmp_path / "results", row(method=cells[0].spec.method))
    return write_run(tmp_path / "results", cells)


def test_a_speedup_of_a_deployment_that_failed_is_never_printed(run: Path, command: Command) -> None:
    fast, slow = (one.row() for one in read_run(run).cells)
    digits = str(fast["speedup"])[:5], f"{fast['speedup']:.2f}"
    prints = {style: command("verdict", run, "--format", style).ok().out for style in ("table", "md", "json")}
    prints["explain"] = command("verdict", run, "--explain").ok().out
    prints["compare"] = command("compare", run, run).out
    prints["report"] = page_of(run).visible
    for name, text in prints.items():
        assert "NOT LOSSLESS" in text, name
        assert NAME in text.replace("\\", "").replace("\n", "") or name == "compare", name  # in a narrow column
        assert not [one for one in digits if one in text], name
        assert str(slow["speedup"])[:3] in text or name == "compare", name
    assert "left out: ngram (K = 4): NOT LOSSLESS: it fails the audit" in " ".join(prints["table"].split())
    assert load_run(run).verdict.best == "suffix (K = 4)"  # type: ignore[union-attr]
    assert edited(read_run(run)) == []


def test_a_run_says_so_when_it_ends(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = read_run(run).cells
    for style in ("table", "md", "csv", "json"):
        jobs.conclude(jobs.Outcome(run, About(), cells, None), Output(style=style, quiet=True))
        out = capsys.readouterr().out
        assert NAME in "".join(out.split()).replace("\\", ""), style
        assert f"{cells[0].row()['speedup']:.2f}" not in out, style
    alone = jobs.Outcome(run, About(), cells[:1], None)
    jobs.conclude(alone, Output(quiet=True))
    out = " ".join(capsys.readouterr().out.split())
    assert "No cell was measured that could be recommended" in out
    assert "left out: ngram (K = 4): NOT LOSSLESS: it fails the audit" in out


def test_the_list_of_runs_counts_it_as_not_measured(run: Path, command: Command) -> None:
    (one,) = json.loads(command("list", run.parent, "--format", "json").ok().out)
    assert one["cells"] == "1 of 2"


def test_progress_shows_no_speedup_without_the_word(tmp_path: Path) -> None:
    audit(tmp_path, row())
    one = cell(sample(), resolved=SERVER, method="chain", backend="vllm-serve", spec_config="ngram", k=4)
    for cells, shown in (([one], True), ([cell(sample(), k=4)], False)):
        screen = io.StringIO()
        with Display(Console(file=screen, force_terminal=True, width=150), False, results=tmp_path) as display:
            display.begin(cells, 2)
            display.estimated(cells[0].spec, 1.5, 3)
        assert ("1.54× … NOT LOSSLESS" in screen.getvalue()) == shown
        assert ("not compiled yet: provisional, NOT LOSSLESS)" in screen.getvalue()) == shown
