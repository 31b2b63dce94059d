"""Method files that are refused, in one line that names the place: the rows of tests/refusals/method_files.yaml."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.decoding.drafters.schedule import Confidence, Heuristic, Marginal
from specbench.decoding.methods import build
from specbench.errors import UsageError
from tests.support.laws import EXACT, block_error
from tests.support.toys import Toy, random_pair

ROWS = yaml.safe_load((Path(__file__).parents[1] / "refusals" / "method_files.yaml").read_text())
CLASSES = ROWS.pop("class")
REFUSED = [(place, part, said) for place, rows in ROWS.items() for part, said in rows]
MODELS = {name: Toy(table) for name, table in zip(("target", "draft"), random_pair(0, 2, 4), strict=True)}


def chain(model: Any = "draft") -> dict[str, Any]:
    return {"ModelDrafter": {"model": model, "k": "k"}}


def written(folder: Path, place: str, part: Any, **fields: Any) -> str:
    """A file that is right but for what stands at one place."""
    right = {"drafter": chain(), "model": "target", "verifier": "Rejection", **fields}
    wrong = {"drafter": chain(part)} if place == "model" else {place: part}
    method = part if place == "method" else {"Speculate": right | wrong}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"summary": "mine", "paper": "none", "lossless": True, "method": method}))
    return str(file)


def check_refused(name: str, said: str, **more: Any) -> None:
    with pytest.raises(UsageError) as caught:
        build(name, MODELS, 4, **more)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(("place", "part", "said"), REFUSED, ids=[f"{place}: {said}" for place, _, said in REFUSED])
def test_a_wrong_part_is_refused_by_file_path_and_choice(place: str, part: Any, said: str, tmp_path: Path) -> None:
    check_refused(written(tmp_path, place, part), said)


@pytest.mark.parametrize(("code", "said"), CLASSES, ids=[said for _, said in CLASSES])
def test_a_wrong_class_of_a_python_file_is_refused_in_one_line(code: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(UsageError) as caught:
        build(written(tmp_path, "drafter", {"own.py:Mine": {"k": "k"}}), MODELS, 4)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


TREES = {
    "Expand": {"Expand": {"model": "draft", "k": "k", "widths": [3, 2]}},
    "Dynamic": {"Dynamic": {"model": "draft", "k": "k", "width": 3, "nodes": 12}},
    "Merge": {"Merge": {"drafters": [chain()]}},
}


@pytest.mark.parametrize("name", TREES)
def test_no_rule_for_chains_judges_a_tree(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, "verifier", "Block", drafter=TREES[name])
    check_refused(file, f"Block judges chains, and {name} drafts trees")


@pytest.mark.parametrize("rule", [{"Lenient": {"lenience": 0.5}}, "Typical", "Relaxed"], ids=str)
def test_trees_of_drawn_tokens_are_refused_by_lossy_rules(rule: Any, tmp_path: Path) -> None:
    drawn = {"Expand": {"model": "draft", "k": "k", "widths": [2]}}
    points, chains = ({"Expand": drawn["Expand"] | one} for one in ({"branching": "Top"}, {"widths": [1, 1]}))
    said = "judges chains and trees of point masses, and Expand drafts trees of drawn tokens"
    check_refused(written(tmp_path, "drafter", drawn, verifier=rule), said)
    for fits in (points, chains):
        check_refused(written(tmp_path, "drafter", fits, verifier=rule), "is lossy: write `lossless: false`")


@pytest.mark.parametrize("schedule", [Heuristic(), Marginal()], ids=["heuristic", "marginal"])
@pytest.mark.parametrize("whole", ["Merge", "Relay", "Select"])
def test_a_schedule_that_learns_is_refused_where_drafts_are_not_judged_alone(
    whole: str, schedule: Heuristic | Marginal, tmp_path: Path
) -> None:
    part = {"ModelDrafter": {"model": "draft", "k": "k", "schedule": "schedule"}}
    fields = {
        "Merge": {"drafters": [part, "NoDraft"]},
        "Relay": {"legs": [part, "NoDraft"]},
        "Select": {"first": {"SuffixLookup": {"k": 2}}, "otherwise": part, "least": 1},
    }
    name = written(tmp_path, "drafter", {whole: fields[whole]})
    for said in ("learns from a verdict on its own draft", "--schedule constant"):
        check_refused(name, said, schedule=schedule)
    assert block_error(build(name, MODELS, 2, schedule=Confidence(0.6)), MODELS["target"].table, 3) <= EXACT


def test_deep_inside_others_a_part_recycles_the_model_that_judges_it(tmp_path: Path) -> None:
    recycling = {"Recycling": {"judge": "draft", "parents": [-1]}}
    inner = {"Speculate": {"drafter": recycling, "model": "draft", "verifier": "Rejection", "length": 2}}
    assert build(written(tmp_path, "drafter", {"Merge": {"drafters": [inner, "NoDraft"]}}), MODELS, 2)
