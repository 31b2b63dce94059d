"""`specbench design-draft`: from shapes to what is learned and measured, going on where it stopped; what is refused."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.jobs import design_phases
from specbench.measure import draft_latency
from specbench.models.scale import shapes
from specbench.models.scale.shapes import Shape
from specbench.show.report import page as report_page
from specbench.training.distil import train
from specbench.training.learner import DivergedError
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair, prompts

SHORT = (
    "--budget", "40k,80k", "--depths", "1,2", "--tokens", "1000", "--rungs", "2", "--repeat", "1", "--k-max", "2",
    "--length", "12", "--rows", "4", "--held-out", "4", "--evaluations", "1", "--limit", "2", "--max-new-tokens", "6",
    "--as-it-is", "--output", "mine",
)  # fmt: skip


@pytest.fixture
def design(command: Command, pair: Pair, tmp_path: Path) -> Command:
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
    timed = draft_latency.timed_turns

    def turns(*given: Any) -> list[dict[str, Any]]:
        return [{**row, **fixed(int(row["draft"].split("-")[1].split("x")[0]))} for row in timed(*given)]

    def fixed(layers: int) -> dict[str, float]:
        cost = 0.1 * layers
        costs = {"c": cost, "v": 1.1, "verify": 1.1, "overhead": 0.0}
        return {"step": 1e-2, **dict.fromkeys(("token", "first", "later"), 1e-2 * cost), **costs}

    monkeypatch.setattr(draft_latency, "timed_turns", turns)


def no_report(*given: Any, **more: Any) -> None:
    """In the place of what draws for seconds."""


def rows_of(found: Outcome) -> list[dict[str, str]]:
    assert found.code == 0, found.err
    return list(csv.DictReader(found.out.splitlines()))


@pytest.mark.slow
def test_a_design_is_timed_trained_measured_and_gone_on_with(
    design: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = design("--format", "csv")
    rows = rows_of(found)
    assert {(row["budget"], row["layers"]) for row in rows} == {(b, d) for b in ("40000", "80000") for d in "12"}
    trained = [row for row in rows if row["trained_tokens"] == "1000"]
    assert len(trained) in (2, 3)  # the better half, and the deepest of their budgets
    assert all((row["status"], row["lossless"]) == ("ok", "identical") for row in trained)
    assert all(float(row["tokens_per_second"]) > 0 for row in trained)
    assert "train on " in found.err
    assert "specbench train draft --target" in found.err
    place = tmp_path / "mine"
    assert {"run.json", "latencies.json", "drafts", "methods", "measured", "design.csv", "design.json", "plots",
            "report.html"} <= {file.name for file in place.iterdir()}  # fmt: skip
    assert rows == list(csv.DictReader((place / "design.csv").read_text().splitlines()))
    assert len(json.loads((place / "design.json").read_text())["rungs"]) == 2
    page = (place / "report.html").read_text()
    assert all(row["name"] in page for row in rows)
    assert {"png", "svg"} == {file.suffix[1:] for file in (place / "plots").iterdir()}

    monkeypatch.setattr(report_page, "write_report", no_report)
    again = design("--format", "csv")
    assert rows_of(again) == rows  # nothing is timed, trained or measured twice
    assert "timing" not in again.err

    last = trained[0]["name"]
    shutil.rmtree(place / "drafts" / last / "tokens-1000")  # as if it had been killed in the last rung
    assert [row["alpha"] for row in rows_of(design("--format", "csv"))] == [row["alpha"] for row in rows]
    refused = design("--depths", "1,2,3")
    assert (refused.code, "with other settings" in refused.line) == (2, True)


@pytest.mark.slow
def test_the_best_draft_is_a_checkpoint(
    design: Command, command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_page, "write_report", no_report)
    rows = rows_of(design("--format", "csv", "--depths", "1", "--budget", "40k", "--rungs", "1", "-q"))
    folder = f"mine/drafts/{rows[0]['name']}/tokens-1000"
    ran = command("run", "--target", pair.target, "--draft", folder, "--dataset", f"jsonl:{tmp_path}/words.jsonl",
                  "--limit", 2, "--max-new-tokens", 6, "--warmup", 0, "--k", rows[0]["k"])  # fmt: skip
    (row,) = (line for line in csv.DictReader(next((tmp_path / "results").glob("*/results.csv")).open()))
    assert (ran.code, row["status"]) == (0, "ok")
    assert float(row["alpha"]) == pytest.approx(float(rows[0]["measured_alpha"]))


@pytest.mark.slow
def test_a_shape_whose_training_diverges_is_worth_nothing_and_the_others_go_on(
    design: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(student: Any, *rest: Any) -> Any:
        if student.config.num_hidden_layers == 2:
            raise DivergedError("the loss is no number")
        return train(student, *rest)

    monkeypatch.setattr(design_phases, "train", diverges)
    monkeypatch.setattr(report_page, "write_report", no_report)
    found = design("--format", "csv", "--budget", "40k", "--rungs", "1")
    alphas = {row["layers"]: float(row["alpha"]) for row in rows_of(found)}
    assert alphas["2"] == 0
    assert "note: the loss is no number" in found.err


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on(design: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(design_phases, "train", interrupted)
    found = design("--budget", "40k", "--depths", "1")
    assert (found.code, found.err.endswith("the same command goes on with it\n")) == (130, True)
    assert (tmp_path / "mine" / "latencies.json").exists()


LIKE = Shape(
    name="like", hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=8, head_dim=64, vocab_size=96, rms_norm_eps=1e-6, max_position_embeddings=64,
)  # fmt: skip


@pytest.mark.slow
def test_times_can_be_those_of_scale_models(design: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is grown and so are its drafts, and what they emit is still what the target would."""
    monkeypatch.setattr(shapes, "shapes", lambda: {"like": LIKE})
    monkeypatch.setattr(report_page, "write_report", no_report)
    found = design("--format", "csv", "--like", "like", "--budget", "40k", "--rungs", "1")
    rows = rows_of(found)
    assert "all times are of scale models: the target grown to like, every draft 4 times as wide" in found.err
    assert all(int(row["grown_parameters"]) > int(row["parameters"]) for row in rows)
    assert {row["lossless"] for row in rows} <= {"identical", "numeric"}
    assert all(row["status"] == "ok" for row in rows)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--depths", "0"), 2, "cannot read --depths '0': write whole numbers from 1 on"),
        (("--depths", "1,x"), 2, "cannot read --depths"),
        (("--budget", "many"), 2, "cannot read --budget 'many'"),
        (("--budget", "-1M"), 2, "cannot read --budget"),
        (("--budget", "1k"), 2, "--budget 1k: no draft of 1 layer"),
        (("--budget", "1k", "--count", "layers"), 2, "--budget 1k: 1 layer"),
        (("--tokens", "10"), 2, "--tokens 10: nothing is learned from so few"),
        (("--target", "nowhere"), 4, "unknown model"),
        (("--like", "nowhere"), 4, "unknown shape 'nowhere'"),
        (("--target", "demo@llama-68m", "--like", "llama-7b"), 2, "is a scale model already"),
        (("--dataset", "code", "--dataset", "articles"), 2, "one data set, not on"),
        (("--loss", "luck"), 2, "--loss"),
        (("--rate-warmup", "0.2", "--target", "nowhere"), 4, "unknown model"),  # not the warm-up of what is measured
        (("--output", "."), 2, "is not empty and holds no draft design"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(
    design: Command, options: tuple[str, ...], code: int, message: str
) -> None:
    found = design(*options)
    assert (found.code, message in found.line) == (code, True), found.line
    assert not (found.cwd / "mine").exists()


def test_a_target_without_a_head_is_refused_in_one_line(design: Command, pair: Pair, tmp_path: Path) -> None:
    place = Path(shutil.copytree(pair.target, tmp_path / "encoder"))
    (place / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 64}')
    found = design("--target", place)
    assert (found.code, str(place) in found.line) == (4, True), found.line
