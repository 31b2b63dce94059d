"""A run on another engine than our own: the whole of a job over the protocol alone, without a checkpoint."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.backends import choose
from specbench.backends.base import Decode, Held, Loading, unseen
from specbench.cli.help import backend_names
from specbench.errors import UnusableModelError, UsageError
from specbench.jobs import run
from specbench.jobs.output import Output
from specbench.jobs.progress import Display
from specbench.jobs.resume import resume
from specbench.measure import runner
from specbench.measure.sensors import Sensors
from specbench.metrics import RoundCounts, Trace
from specbench.results.reading import read_run
from specbench.spec import RunSpec
from tests.support.frontdoor import Command

CPU = torch.device("cpu")
STEP, DRAFTED, PASS = 0.010, 0.001, 0.012  # seconds of a baseline step, of a drafted token and of a verification


@dataclass
class Table:
    """An engine that has written the same tokens for every prompt before: it drafts K of them, and two are accepted."""

    specs: Sequence[RunSpec]
    name: str = "table"
    device: torch.device = CPU
    context: int = 100
    execution: str = "read from a table"
    warnings: Sequence[str] = ("its seconds are made up",)
    scores: None = None
    networks: None = None
    chat: None = None
    calls: list[str] = field(default_factory=list)

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def describe(self) -> dict[str, Any]:
        return {"target_source": "a table", "dtype_resolved": "none"}

    def notes(self, spec: RunSpec) -> Sequence[str]:
        return ("a table knows no time",) if spec.k == 4 else ()

    def demand(self, held: Sequence[Held]) -> None:
        return None

    def frugal(self) -> None:
        return None

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        self.calls.append(f"load {longest}")

    def unload(self) -> None:
        self.calls.append("unload")

    def keep(self, specs: Sequence[RunSpec]) -> None:
        return

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        self.calls.append(f"prepare {spec.method} {spec.k}")
        return lambda prompts, seeds: [self.trace(spec.k, spec.max_new_tokens) for _ in prompts]

    def trace(self, k: int, new: int) -> Trace:
        tokens, accepted = tuple(range(new)), min(k, 2)
        n = new // (accepted + 1)
        tested = min(accepted + 1, k)
        rounds = (RoundCounts(k, tested, accepted, accepted + 1, (0.75,) * tested),) * n
        draft, verify = DRAFTED * k * n, (PASS if k else 0.8 * STEP) * n
        rest = 0.0 if k else 0.2 * STEP * n
        return Trace(tokens, rounds, draft + verify + rest, 0.1, {"draft": draft, "verify": verify, "accept": 0.0})


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Table]:
    """The backends that were opened; every pair has one that reads a table."""
    opened: list[Table] = []
    monkeypatch.setitem(choose.BACKENDS, "native", lambda specs: opened.append(Table(specs)) or opened[-1])
    return opened


@pytest.fixture
def specs(tmp_path: Path) -> list[RunSpec]:
    data = tmp_path / "words.jsonl"
    data.write_text("".join(json.dumps({"id": f"p{n}", "prompt": "a bb ccc " * (n + 1)}) + "\n" for n in range(5)))
    common = {"target": "big", "draft": "small", "dataset": f"jsonl:{data}", "max_new_tokens": 12, "warmup": 1}
    return [RunSpec(**common, k=k) for k in (1, 4)]


def rows_of(parent: Path) -> list[dict[str, str]]:
    (folder,) = parent.iterdir()
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_needs_nothing_of_an_engine_but_the_protocol(
    tables: list[Table], specs: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run.start(specs, Output("csv", tmp_path / "results"))
    one, four = rows_of(tmp_path / "results")
    assert [(row["status"], row["lossless"], row["prompts"]) for row in (one, four)] == [("ok", "identical", "5")] * 2
    assert (four["target_source"], four["dtype_resolved"], four["rejected"]) == ("a table", "none", "")
    assert float(four["alpha"]) == pytest.approx(0.75)
    assert float(four["tokens_per_round"]) == pytest.approx(3)
    assert float(four["c"]) == pytest.approx(DRAFTED / STEP)
    assert float(four["speedup"]) == pytest.approx(3 * STEP / (4 * DRAFTED + PASS))
    assert float(one["speedup"]) == pytest.approx(2 * STEP / (DRAFTED + PASS))
    (table,) = tables
    assert table.calls == ["load 15", "prepare baseline 0", "prepare chain 1", "prepare chain 4", "unload"]
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("note: ")] == [
        "note: read from a table", "note: its seconds are made up",
    ]  # fmt: skip
    monkeypatch.setattr(runner, "sensors_for", lambda device: Sensors(remark="nobody knows its clocks", root=None))
    run.start([specs[0], specs[0].with_(target="bigger")], Output("csv", tmp_path / "others"))
    assert len(tables) == 1 + 2
    assert capsys.readouterr().err.count("note: nobody knows its clocks\n") == 1, "for all pairs"


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="the system has no /proc/stat")
def test_a_run_reads_the_machine_after_every_decode_that_counts(
    tables: list[Table], specs: list[RunSpec], tmp_path: Path
) -> None:
    run.start(specs, Output("csv", tmp_path / "results"))
    (folder,) = (tmp_path / "results").iterdir()
    readings = [one for cell in read_run(folder).cells for sample in cell.samples for one in sample.readings]
    assert len(readings) == 20
    assert all(one.cpu_wanted is not None and one.cpu_stolen is not None for one in readings)
    assert all("gpu_driver" in row and row["gpu_mhz"] == "" for row in rows_of(tmp_path / "results"))


def test_output_that_differs_is_not_judged_where_an_engine_gives_no_logits(
    tables: list[Table], specs: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Table.trace

    def other(self: Table, k: int, new: int) -> Trace:
        found = honest(self, k, new)
        return Trace((*found.tokens[:-1], 99), *list(vars(found).values())[1:]) if k == 4 else found

    monkeypatch.setattr(Table, "trace", other)
    run.start(specs, Output("csv", tmp_path / "results"))
    one, four = rows_of(tmp_path / "results")
    assert (one["lossless"], four["lossless"]) == ("identical", "not compared")
    assert (four["prompts_identical"], four["prompts_compared"], four["first_divergence"]) == ("0", "5", "11")


def test_a_display_that_fails_loses_nothing_that_was_measured(
    tables: list[Table], specs: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[object] = []

    def broken(self: Display, samples: object) -> None:
        drawn.append(samples)
        if len(drawn) == 3:
            raise OSError("the terminal is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Display, "turn", broken)
        with pytest.raises(OSError, match="the terminal is gone"):
            run.start(specs, Output("csv", tmp_path / "results"))
    (folder,) = (tmp_path / "results").iterdir()
    assert [len(cell.samples) for cell in read_run(folder).cells] == [3, 3]
    resume(folder, Output("csv"))
    assert [len(cell.samples) for cell in read_run(folder).cells] == [5, 5]
    assert [row["prompts"] for row in rows_of(tmp_path / "results")] == ["5", "5"]


def test_what_cannot_be_loaded_or_measured_ends_its_job_and_leaves_no_folder(
    tables: list[Table], specs: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Table, longest: int = 0, watch: Loading = unseen) -> None:
        raise UnusableModelError("no such table")

    with pytest.raises(UsageError, match="--k auto reads the networks of a pair, and the backend table gives no"):
        run.start([specs[0].with_(schedule="auto")], Output("csv", tmp_path / "results"))
    assert tables[0].calls == [], "before anything is loaded"
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(Table, "load", refuse)
    with pytest.raises(UnusableModelError, match=r"^no such table$"):
        run.start(specs, Output("csv", tmp_path / "results"))
    assert list((tmp_path / "results").iterdir()) == []
    assert tables[1].calls == ["unload"]


SEARCHES = {"calibrate": "a calibration", "tree": "the search for a tree", "trace": "a trace"}


@pytest.mark.parametrize("name", [*SEARCHES, "skip-layers"])
def test_what_looks_inside_a_round_says_that_it_needs_the_native_backend(
    tables: list[Table], command: Command, name: str
) -> None:
    command(name).refused(f"{SEARCHES.get(name, 'the search for layers')} reads the networks of a pair")
    assert tables[0].calls == []


def test_a_shell_completes_the_name_of_every_engine() -> None:
    assert set(choose.BACKENDS) <= set(backend_names())
