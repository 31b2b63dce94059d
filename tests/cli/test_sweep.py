"""`specbench sweep-k`, `sweep` and `--resume` as a user calls them, on a tiny pair."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import LlamaConfig

from tests.support.frontdoor import Command, Outcome
from tests.support.heads import write_head
from tests.support.tinypair import Pair, prompts

SHORT = ("--limit", "3", "--max-new-tokens", "8", "--warmup", "0")


@pytest.fixture
def sweep_k(command: Command, pair: Pair, tmp_path: Path) -> Command:
    def call(*arguments: object) -> Outcome:
        return command(
            "sweep-k", *pair.options, "--dataset", prompts(tmp_path / "w.jsonl", 4, 6, 5), *SHORT, *arguments
        )

    return call


def written(tmp_path: Path, **grid: Any) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({"limit": 2, "max_new_tokens": 6, "warmup": 0, **grid}))
    return path


# --- sweep-k ----------------------------------------------------------------------------------------------------------


def test_every_k_is_measured_on_the_same_prompts_with_one_baseline(sweep_k: Command) -> None:
    found = sweep_k("--k", "1-3,auto").ok()
    rows = found.table()
    assert [(row["k"], row["schedule"], row["status"]) for row in rows] == [
        ("1", "constant", "ok"), ("2", "constant", "ok"), ("3", "constant", "ok"), ("12", "auto", "ok"),
    ]  # fmt: skip
    assert {row["lossless"] for row in rows} <= {"identical", "numeric"}
    samples = found.table("samples.csv")
    assert len(samples) == 4 * 3
    baselines = {(s["prompt"], s["baseline_seconds"], s["baseline_output_sha256"]) for s in samples}
    assert len(baselines) == 3, "one baseline decode per prompt, whatever the number of K"
    assert json.loads(rows[3]["schedule_costs"])["verify"][0] == 1.0
    assert rows[0]["schedule_costs"] == ""


def test_the_table_names_the_best_k_by_measurement_and_by_both_predictions(sweep_k: Command) -> None:
    found = sweep_k("--k", "1,4", "--explain")
    for measure in ("measured", "calibrated", "formula"):
        assert f"best K, {measure}: " in found.out
    assert "acceptance by position" in found.out
    assert "from the formula to the measurement" in found.out


def test_the_default_is_one_to_eight(sweep_k: Command) -> None:
    assert [row["k"] for row in sweep_k("--limit", 1).table()] == [str(k) for k in range(1, 9)]


def test_lengths_of_prompts_by_lookahead_in_one_command(sweep_k: Command) -> None:
    found = sweep_k("--k", "1,2", "--context", "24,12", "--limit", "1", "--explain").ok()
    assert [(row["context"], row["k"], row["status"]) for row in found.table()] == [
        ("24", "1", "ok"), ("24", "2", "ok"), ("12", "1", "ok"), ("12", "2", "ok"),
    ]  # fmt: skip
    assert [row["prompt_tokens"] for row in found.table("samples.csv")] == ["24", "24", "12", "12"]
    assert "speedup by context" in found.out


# --- grids ------------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination(command: Command, pair: Pair, tmp_path: Path) -> None:
    data = prompts(tmp_path / "w.jsonl", 4, 6)
    entry = {"target": str(pair.target), "draft": str(pair.draft)}
    grid = written(tmp_path, pair=[entry], dataset=data, method=["chain", "token-match"], temperature=[0, 1], k="1-2")
    found = command("sweep", grid, "-q", "--limit", "1").ok()
    rows = found.table()
    assert [(r["temperature"], r["method"], r["k"]) for r in rows] == [
        (t, m, k) for t in ("0.0", "1.0") for m in ("chain", "token-match") for k in ("1", "2")
    ]
    assert {row["prompts"] for row in rows} == {"1"}, "the command line wins over the file"


def test_methods_with_further_models_share_one_baseline(command: Command, pair: Pair, tmp_path: Path) -> None:
    """A draft model and a head that have names of their own belong to the pair: docs/paper.md."""
    head = write_head(tmp_path / "eagle", "eagle3", LlamaConfig.from_pretrained(pair.target), aux=(0, 1))
    for name in ("small", "head"):
        drafter = {"ModelDrafter": {"model": name, "k": "k"}}
        content = {"summary": f"A chain from {name}", "lossless": True, "part": drafter}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    names = ["chain", str(tmp_path / "small.yaml"), str(tmp_path / "head.yaml"), "prompt-lookup"]
    entry = {"target": str(pair.target), "draft": str(pair.draft)}
    models = {"small": str(pair.draft), "head": str(head)}
    data = prompts(tmp_path / "w.jsonl", 4, 6)
    found = command(
        "sweep", written(tmp_path, **entry, model=models, dataset=data, method=names, k=2, tier="eager")
    ).ok()
    rows = found.table()
    assert [(row["method"], row["status"]) for row in rows] == [(name, "ok") for name in names]
    assert rows[0]["alpha"] == rows[1]["alpha"], "the same draft by another name"
    samples = found.table("samples.csv")
    assert len(samples) == 4 * 2
    assert len({(s["prompt"], s["baseline_seconds"], s["baseline_output_sha256"]) for s in samples}) == 2
    assert "EAGLE-3" in found.err


def test_many_cells_are_counted_before_they_are_checked(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.measure.grid.MOST_CELLS", 100)
    grid = written(tmp_path, k="1-101", dataset="code", target="nobody/nothing", draft="demo-draft")
    assert command("sweep", grid).code == 2
    found = command("sweep", grid, "--yes")
    assert found.code == 4
    assert found.err.startswith("101 cells\n")
    assert "101 cells" not in command("sweep", grid, "--yes", "-q").err


def test_a_pair_that_is_unusable_ends_its_own_cells_and_the_sweep_goes_on(
    command: Command, pair: Pair, tmp_path: Path
) -> None:
    entries = [
        {"target": "nobody/nothing", "draft": str(pair.draft)},
        {"target": str(pair.target), "draft": str(pair.draft)},
    ]
    grid = written(tmp_path, pair=entries, dataset=prompts(tmp_path / "w.jsonl", 4, 6), k=[1, 2])
    found = command("sweep", grid)
    assert found.code == 6
    rows = found.table()
    assert [row["status"] for row in rows] == ["error", "error", "ok", "ok"]
    assert "nobody/nothing" in rows[0]["error"]
    assert rows[0]["speedup"] == ""
    assert "nobody/nothing" in found.err.splitlines()[-1]


# --- going on ---------------------------------------------------------------------------------------------------------


def test_a_finished_run_that_is_continued_stays_as_it_is(sweep_k: Command, command: Command) -> None:
    first = sweep_k("--k", "1-2")
    before = (first.folder / "journal.jsonl").read_bytes(), (first.folder / "results.csv").read_bytes()
    again = command("sweep-k", "--resume", Path("results") / first.folder.name).ok()
    assert ((first.folder / "journal.jsonl").read_bytes(), (first.folder / "results.csv").read_bytes()) == before
    assert again.out == first.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "0" * 12}, "on another machine or with other versions"),
        ({"specbench": "0.0.1"}, "specbench 0.0.1; here "),
    ],
)
def test_a_run_of_another_machine_is_not_continued(
    sweep_k: Command, command: Command, change: dict[str, str], said: str
) -> None:
    first = sweep_k("--k", "1")
    make_unfinished(first.folder)
    path = first.folder / "run.json"
    described = json.loads(path.read_text())
    described["environment"] |= change
    path.write_text(json.dumps(described))
    command("sweep-k", "--resume", first.folder).refused(said)


def test_a_run_whose_prompts_have_changed_is_not_continued(sweep_k: Command, command: Command, tmp_path: Path) -> None:
    first = sweep_k("--k", "1")
    make_unfinished(first.folder)
    prompts(tmp_path / "w.jsonl", 4, 7, 5)
    assert "have changed since this run was begun: start a new run" in command("run", "--resume", first.folder).line


@pytest.mark.parametrize("damage", [{"specs": None}, {"specs": []}, {"specs": [{"x": 1}]}, {"environment": []}])
def test_a_damaged_description_is_one_line(sweep_k: Command, command: Command, damage: dict[str, Any]) -> None:
    first = sweep_k("--k", "1", "--limit", "1")
    path = first.folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    command("sweep-k", "--resume", first.folder).refused("run.json is damaged")


def make_unfinished(folder: Path) -> None:
    """Take the last lines of the journal away, the end of the cell and its last turn, and the tables made of them."""
    (folder / "results.csv").unlink()
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
