"""The numbers by category: those that a run of the category's prompts alone would have, in a file of their own."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from specbench.results.cells import TIMED, Cell
from specbench.results.folder import RunFolder
from specbench.results.samples import Sample
from tests.support.measured import baseline_trace, cell, sample
from tests.support.simulated_sweeps import sweep, write_run

SHARED = ("prompts", "draws", "alpha", "alpha_low", "alpha_high", "alpha_tested",
          "accepted_per_drafted", "tokens_per_round", "c", "v", "overhead", "speedup",
          "speedup_low", "speedup_high", "speedup_geomean", "speedup_end_to_end",
          "speedup_predicted", "speedup_calibrated", "repeated_4grams", "prompts_looping", "rounds",
          "tested")  # fmt: skip


def of_kinds() -> tuple[Sample, ...]:
    """Two prompts of maths, one of them with twice the steps of the other, and one of code."""
    slow = {"baseline": baseline_trace(range(4), step=0.02)}
    return (
        sample("m1", (4, 2), category="maths"),
        sample("c1", (1, 1), category="code", **slow),
        sample("m2", (0, 2), category="maths", **slow),
    )


def rows(*cells: Cell) -> dict[str, dict[str, Any]]:
    return {row["category"]: row for one in cells for row in one.category_rows()}


def test_a_category_has_the_numbers_of_a_run_of_its_prompts_alone() -> None:
    samples = of_kinds()
    found, alone = rows(cell(*samples)), cell(samples[0], samples[2]).row()
    assert list(found) == ["code", "maths"]
    assert {name: found["maths"][name] for name in SHARED} == pytest.approx({name: alone[name] for name in SHARED})
    assert found["maths"]["cell"] == cell(*samples).spec.key
    assert (found["maths"]["method"], found["maths"]["k"], found["maths"]["dataset"]) == ("chain", 4, "code")


def test_c_is_in_steps_of_the_baseline_in_that_category() -> None:
    found = rows(cell(*of_kinds()))
    assert found["code"]["c"] == pytest.approx(0.05)  # a drafted token takes 1 ms, a step there 20 ms
    assert found["maths"]["c"] == pytest.approx(0.001 / (0.16 / 12))  # 12 steps in 80 and 80 ms


def test_a_mean_of_prompts_counts_every_prompt_alike_that_tested_something() -> None:
    maths = rows(cell(*of_kinds()))["maths"]
    assert maths["tokens_per_round"] == 12 / 4
    assert maths["tokens_per_round_mean"] == (8 / 2 + 4 / 2) / 2
    assert maths["c_mean"] == pytest.approx((0.1 + 0.05) / 2)
    lopsided = (sample("m1", (4, 4, 4), category="a"), sample("m2", (0,), category="a"), sample("m3", category="b"))
    found = rows(cell(*lopsided))["a"]
    assert found["tokens_per_round"] == 16 / 4
    assert found["tokens_per_round_mean"] == (5 + 1) / 2
    nothing = sample("m2", method=baseline_trace(range(4)), category="a")
    found = rows(cell(sample("m1", category="a"), nothing, sample("m3", category="b")))["a"]
    assert found["alpha_mean"] == pytest.approx(0.5)


def test_one_prompt_has_numbers_and_no_interval_however_often_it_is_repeated() -> None:
    code = rows(cell(*of_kinds()))["code"]
    assert code["prompts"] == 1
    assert code["speedup"] > 0
    bounds = [code[f"{name}_{end}"] for name in ("speedup", "alpha", "tokens_per_round") for end in ("low", "high")]
    assert all(map(math.isnan, bounds))
    again = [sample("m1", repeat=r, category="a") for r in range(3)]
    found = rows(cell(*again, sample("m2", category="b"), sample("m3", category="b")))
    assert (found["a"]["prompts"], math.isnan(found["a"]["speedup_low"])) == (1, True)
    assert (found["b"]["prompts"], math.isnan(found["b"]["speedup_low"])) == (2, False)


def test_prompts_decoded_together_have_no_times_by_category() -> None:
    found = rows(
        cell(
            *(sample(f"p{n}", category="ab"[n % 2], cluster=f"batch {n // 2}", turn=n // 2) for n in range(4)), batch=2
        )
    )
    assert {name: found["a"][name] for name in TIMED} == dict.fromkeys(TIMED)
    assert found["a"]["alpha"] == pytest.approx(0.5)


@pytest.mark.parametrize("one", [cell(sample("p1"), sample("p2")), cell(*of_kinds(), status="oom"), cell(status="ok")])
def test_one_category_and_cells_without_numbers_have_no_rows(one: Cell) -> None:
    assert one.category_rows() == []


# --- the file ---------------------------------------------------------------------------------------------------------


def table(path: Path) -> list[dict[str, str]]:
    with (path / "categories.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_file_has_the_rows_of_all_cells_with_several_categories_and_is_rendered_again(tmp_path: Path) -> None:
    cells = [one for name in ("code", "articles") for one in sweep(name, prompts=6, ks=(1, 3))]
    path = write_run(tmp_path, cells)
    found = table(path)
    assert [(row["cell"], row["category"]) for row in found] == [
        (one.spec.key, kind) for one in cells[:2] for kind in ("maths", "parsing", "text")
    ]
    expected = rows(cells[1])["text"]
    assert float(found[-1]["speedup_low"]) == expected["speedup_low"]
    assert float(found[-1]["alpha_mean"]) == expected["alpha_mean"]
    (path / "categories.csv").unlink()
    RunFolder.resume(path).close()
    assert table(path) == found
    assert not (write_run(tmp_path / "one", sweep("articles", prompts=2, ks=(2,))) / "categories.csv").exists()
