"""Acceptance profiles: both meanings of acceptance, what no profile is, and the way of one through a run and back."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.judge.predictions import is_name_of, profile_of_run
from specbench.measure.grid import cells
from specbench.presets import profile_of, read_profile
from specbench.show.text import caveats
from specbench.theory.formulas import expected_tokens_by_position
from specbench.wording import Row
from tests.support.frontdoor import Command

RUN = Path(__file__).parent.parent / "results" / "demo"


@pytest.mark.parametrize(
    "content",
    [
        {"conditional": [0.8, 0.75, 0.5]},
        {"joint": [0.8, 0.6, 0.3]},
        {"drafts": 50, "accepted_per_position": [40, 30, 15]},
        {"joint": [0.8, 0.6, 0.3], "conditional": [0.8, 0.75, 0.5]},
    ],
)
def test_joint_counts_and_conditional_say_the_same(content: dict[str, Any]) -> None:
    found = profile_of({**content, "source": {"engine": "vLLM", "k": 3}})
    assert found.conditional == pytest.approx((0.8, 0.75, 0.5))
    assert found.source == "engine vLLM, k 3"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([0.8], "one of the keys"),
        ({"source": "x"}, "one of the keys"),
        ({"conditional": [0.8]}, "must name where it was measured"),
        ({"conditional": [1.2], "source": "x"}, r"must be in \[0, 1\]"),
        ({"joint": [0.5, 0.6], "source": "x"}, "more often than the one before"),
        ({"conditional": [], "source": "x"}, "expected 1 to"),
        ({"conditional": ["0.8"], "source": "x"}, "expected 1 to"),
        ({"accepted_per_position": [3], "source": "x"}, "drafts: expected"),
        ({"accepted_per_position": [3], "drafts": 0, "source": "x"}, "no drafts were counted"),
        ({"conditional": [0.8], "joint": [0.7], "source": "x"}, "different profiles"),
    ],
)
def test_what_is_no_profile_is_refused_in_one_line(content: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=said) as error:
        read_profile(file)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(("length", "k"), [(1.0, 3), (2.34, 3), (3.24, 5), (6.0, 5), (1.5, 1)])
@pytest.mark.parametrize("shape", ["", "@geometric", "@min-variance"])
def test_rounds_emit_as_many_tokens_as_an_acceptance_length_says(length: float, k: int, shape: str) -> None:
    (cell,) = cells({"k": k, "acceptance": f"al:{length}{shape}"})
    assert cell.acceptance is not None
    assert len(cell.acceptance) == k
    assert expected_tokens_by_position(cell.acceptance) == pytest.approx(length, abs=1e-5)
    assert (len(set(cell.acceptance)) == 1) or shape == "@min-variance"
    kind = shape.removeprefix("@") or "geometric"
    assert cell.acceptance_source == f"AL {length:g} at K = {k}, {kind}"


def test_the_least_variance_accepts_whole_tokens_for_certain() -> None:
    (cell,) = cells({"k": 4, "acceptance": "al:3.25@min-variance"})
    assert cell.acceptance == (1, 1, 0.25, 0)


def test_every_lookahead_has_rates_of_its_own_and_a_baseline_none() -> None:
    found = cells({"k": [2, 4], "method": ["chain", "baseline"], "acceptance": "al:2.5"})
    assert sorted(len(cell.acceptance or ()) for cell in found) == [0, 2, 4]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k": 2, "acceptance": "al:3.5"}, "emits 1 to 3 tokens on average"),
        ({"k": 2, "acceptance": "al:0.5"}, "emits 1 to 3 tokens on average"),
        ({"k": 2, "acceptance": "al:two"}, "write an acceptance length as"),
        ({"k": 2, "acceptance": "al:2@normal"}, "write an acceptance length as"),
        ({"k": "auto", "acceptance": "al:2"}, "needs one K"),
    ],
)
def test_a_length_that_rounds_cannot_have_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cells(settings)


def test_every_engine_is_made_to_accept_as_much() -> None:
    found = profile_of({"joint": [0.78, 0.56, 0.38], "source": "x"}).forced
    (option, config) = shlex.split(found["vllm"])
    assert option == "--speculative-config"
    assert json.loads(config) == {
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": pytest.approx([0.78, 0.56, 0.38], abs=1e-5),
    }
    assert found["sglang"] == "SGLANG_SIMULATE_ACC_LEN=2.72 SGLANG_SIMULATE_ACC_METHOD=match-expected"
    assert found["llama-server"] == "--spec-synth-rates 0.78,0.56,0.38"
    assert found["trtllm"] == "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=1.72"
    assert found["atom"] == "--spec-decode-acceptance-length 2.72"
    assert found["aiconfigurator"] == "--nextn 3 --nextn-accepted 1.72"


def test_the_options_of_an_engine_are_printed_for_a_run(command: Command) -> None:
    found = command("profile", str(RUN), "--cell", "K2", "--engine", "llama-server")
    assert found.code == 0, found.err
    option, words, hash_, *said = found.out.split()
    first, second = map(float, words.split(","))
    assert (option, hash_) == ("--spec-synth-rates", "#")
    assert 1 > first > second > 0
    length, low, high = (float(word.strip("[],")) for word in said[1:4])
    assert length == pytest.approx(1 + first + second, abs=1e-3)
    assert low < length < high
    assert found.out.endswith("independent draws, K = 2\n")
    source = json.loads(command("profile", str(RUN), "--cell", "K2").out)["source"]
    assert [round(source[name], 3) for name in ("al", "al_low", "al_high")] == [length, low, high]
    wrong = command("profile", str(RUN), "--cell", "K2", "--engine", "ollama")
    assert wrong.code == 2
    assert "unknown engine 'ollama': choose one of vllm, sglang" in wrong.err


def test_a_position_after_one_that_was_never_accepted_is_never_accepted() -> None:
    assert profile_of({"joint": [0.5, 0.0, 0.0], "source": "x"}).conditional == (0.5, 0.0, 0.0)


def test_what_a_run_exports_is_what_another_imports(tmp_path: Path) -> None:
    rows = [row("code", 3, 0.81, 0.7, 0.65), row("articles", 3, 0.5, 0.4, 0.3), row("code", 2, 0.8, 0.7)]
    found, about = profile_of_run(rows, "articles")
    file = tmp_path / "mine.json"
    file.write_text(found.text(**about))
    (spec,) = cells({"dataset": "code", "acceptance": str(file), "k": 3})
    assert spec.acceptance == (0.5, 0.4, 0.3)
    assert spec.acceptance_source == "specbench, articles chain K3"
    assert json.loads(file.read_text())["source"]["target"] == "demo"
    assert spec.baseline.acceptance_source is None
    assert "articles chain K3" in caveats([{**spec.model_dump(mode="json"), "acceptance": "0.5,0.4,0.3"}])[0]


def test_a_cell_is_chosen_and_trees_have_no_profile() -> None:
    rows = [row("code", 3, 0.8, 0.7), row("code", 4, 0.8, 0.7), row("code", 0, method="baseline")]
    assert profile_of_run(rows, "K4")[1]["k"] == "4"
    with pytest.raises(UsageError, match="choose one with --cell"):
        profile_of_run(rows)
    with pytest.raises(UsageError, match="no cell drafted a chain"):
        profile_of_run([{**rows[0], "drafted_per_round": 2.0, "nodes_per_round": 6.0}])


@pytest.mark.parametrize(
    ("given", "name", "meant"),
    [
        ("K4", "chain K4", True), ("k = 4", "chain K4", True), ("K=4", "chain K4", True), ("chain", "chain K4", True),
        ("chain, K = 4", "chain K4", True), ("Chain K4", "chain K4", True), ("K4", "chain K40", False),
        ("block", "chain K4", False), ("4", "chain K4", False), ("", "chain K4", False),
    ],
)  # fmt: skip
def test_a_cell_is_named_as_people_write_it(given: str, name: str, meant: bool) -> None:
    assert is_name_of(given, name) == meant


def row(dataset: str, k: int, *acceptance: float, method: str = "chain") -> Row:
    about = {"cell": f"{dataset}{k}", "target": "demo", "dataset": dataset, "method": method, "k": str(k)}
    about |= {"drafted_per_round": k, "nodes_per_round": k}
    return {**about, **{f"acceptance_at_{i}": chance for i, chance in enumerate(acceptance, start=1)}}


GOLDEN = "# run 1\nmodel:\n  thinking_on: {1: 1.86, 3: 3.08}\n  thinking_off: {1: 1.93, 3: 3.55}\n"


def test_golden_lengths_are_those_of_their_lookahead(tmp_path: Path) -> None:
    file = tmp_path / "golden.yaml"
    file.write_text(GOLDEN)
    found = cells({"k": [1, 3], "acceptance": f"{file}:thinking_on"})
    assert [cell.acceptance for cell in found] == [(0.86,), (1, 1, 0.08)]
    assert found[1].acceptance_source == "AL 3.08 at K = 3, min-variance"
    for which, k, said in (("", 3, "name one curve as"), (":thinking_on", 2, "no acceptance length for K = 2")):
        with pytest.raises(UsageError, match=said):
            cells({"k": k, "acceptance": f"{file}{which}"})
    file.write_text("model: {thinking_on: 3}\n")
    with pytest.raises(UsageError, match="thinking_on"):
        cells({"k": 3, "acceptance": str(file)})
