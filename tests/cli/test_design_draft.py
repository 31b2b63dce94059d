"""`specbench design-draft`: from shapes to what is learned and measured, going on where it stopped; what is refused."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.jobs.training import design
from specbench.jobs.training.design_results import DraftTimes, Speed, Spread
from specbench.show.report import page as report_page
from specbench.training.distil import Run
from specbench.training.learner import DivergedError, Learner
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair, prompts

SHORT = (
    "--budget", "40k,80k", "--depths", "1,2", "--tokens", "1000", "--rungs", "2", "--repeat", "1", "--k-max", "2",
    "--length", "12", "--rows", "4", "--held-out", "4", "--evaluations", "1", "--limit", "2", "--max-new-tokens", "6",
    "--as-it-is", "--output", "mine",
)  # fmt: skip


@pytest.fixture
def designed(command: Command, pair: Pair, tmp_path: Path) -> Command:
    """The command on the tiny target, with text and prompts for it."""
    for number in range(20):
        (tmp_path / f"text-{number}.txt").write_text(" ".join(f"w{(7 * number + n) % 40}" for n in range(40)))
    data = prompts(tmp_path / "words.jsonl", 4, 6, 5)
    common = ("--target", pair.target, "--data", f"text:{tmp_path}/text-*.txt", "--dataset", data, *SHORT)

    def call(*arguments: object) -> Outcome:
        return command("design-draft", *common, *arguments)

    return call


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is timed, and the times are then those of a quiet machine on which a layer costs a tenth of a step:
    what is trained and found must not depend on what else runs here."""
    speed_of = design.speed_of

    def steady_speed(timed: Any, k_max: int) -> Any:
        found = speed_of(timed, k_max)
        costs = {name: 0.1 * int(name.split("-")[1].split("x")[0]) for name in found.drafts}
        drafts = {
            name: DraftTimes(Spread.of([1e-2 * c]), Spread.of([c]), 1e-2 * c, 1e-2 * c) for name, c in costs.items()
        }
        v = dict.fromkeys(found.v, 1.1)
        return Speed(Spread.of([1e-2]), (1.0, *[1.1] * k_max), 0.0, v, drafts, k_max)

    monkeypatch.setattr(design, "speed_of", steady_speed)


def no_report(*given: Any, **more: Any) -> None:
    """In the place of what draws for seconds."""


def rows_of(found: Outcome) -> list[dict[str, str]]:
    assert found.code == 0, found.err
    return list(csv.DictReader(found.out.splitlines()))


@pytest.mark.slow
def test_a_design_is_timed_trained_measured_and_gone_on_with(
    designed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = designed("--format", "csv")
    rows = rows_of(found)
    assert {(row["budget"], row["layers"]) for row in rows} == {(b, d) for b in ("40000", "80000") for d in "12"}
    trained = [row for row in rows if row["trained_tokens"] == "1000"]
    assert len(trained) in (2, 3)  # the better half, and the deepest of their budgets
    assert all((row["status"], row["lossless"]) == ("ok", "identical") for row in trained)
    assert all(float(row["tokens_per_second"]) > 0 for row in trained)
    assert "train on " in found.err
    assert "specbench train draft --target" in found.err
    place = tmp_path / "mine"
    assert {"run.json", "drafts", "methods", "timed", "measured", "design.csv", "design.json", "plots",
            "report.html"} <= {file.name for file in place.iterdir()}  # fmt: skip
    assert rows == list(csv.DictReader((place / "design.csv").read_text().splitlines()))
    assert len(json.loads((place / "design.json").read_text())["rungs"]) == 2
    page = (place / "report.html").read_text()
    assert all(row["name"] in page for row in trained), "those that were measured"
    assert {"png", "svg"} == {file.suffix[1:] for file in (place / "plots").iterdir()}

    monkeypatch.setattr(report_page, "write_report", no_report)
    again = designed("--format", "csv")
    assert rows_of(again) == rows  # nothing is timed, trained or measured twice
    assert "timing" not in again.err

    last = trained[0]["name"]
    shutil.rmtree(place / "drafts" / last / "tokens-1000")  # as if it had been killed in the last rung
    assert [row["alpha"] for row in rows_of(designed("--format", "csv"))] == [row["alpha"] for row in rows]
    designed("--depths", "1,2,3").refused("was begun with depths [1, 2], not [1, 2, 3]")


@pytest.mark.slow
def test_the_best_draft_is_a_checkpoint(
    designed: Command, command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_page, "write_report", no_report)
    rows = rows_of(designed("--format", "csv", "--depths", "1", "--budget", "40k", "--rungs", "1", "-q"))
    folder = f"mine/drafts/{rows[0]['name']}/tokens-1000"
    ran = command("run", "--target", pair.target, "--draft", folder, "--dataset", f"jsonl:{tmp_path}/words.jsonl",
                  "--limit", 2, "--max-new-tokens", 6, "--warmup", 0, "--k", rows[0]["k"])  # fmt: skip
    (row,) = (line for line in csv.DictReader(next((tmp_path / "results").glob("*/results.csv")).open()))
    assert (ran.code, row["status"]) == (0, "ok")
    assert float(row["alpha"]) == pytest.approx(float(rows[0]["measured_alpha"]))


@pytest.mark.slow
def test_a_shape_whose_training_diverges_is_worth_nothing_and_the_others_go_on(
    designed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Learner.step

    def diverges(self: Learner, *rest: Any) -> float:
        if self.student.config.num_hidden_layers == 2:
            raise DivergedError("the loss is no number")
        return step(self, *rest)

    monkeypatch.setattr(Learner, "step", diverges)
    monkeypatch.setattr(report_page, "write_report", no_report)
    found = designed("--format", "csv", "--budget", "40k", "--rungs", "1")
    alphas = {row["layers"]: float(row["alpha"]) for row in rows_of(found)}
    assert alphas["2"] == 0
    assert "note: the loss is no number" in found.err


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on(designed: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "trained", interrupted)
    found = designed("--budget", "40k", "--depths", "1")
    assert (found.code, found.err.endswith("the same command continues it\n")) == (130, True)
    assert list((tmp_path / "mine" / "timed").glob("*/journal.jsonl"))
