"""The table over engines: which rows it takes, what it says of them, and what differs."""

from typing import Any

from specbench.results.cells import Cell
from specbench.show.engines_table import engines_table
from specbench.show.grouping import by_engine
from tests.support.measured import cell, sample


def row(engine: str, speed: float = 1.0, **resolved: Any) -> dict[str, Any]:
    common = {"engine": engine, "tier_resolved": "eager", "threads": 2, "prompts_sha256": "0", "engine_notes": ""}
    made: Cell = cell(*(sample(f"p{n}") for n in range(3)), backend=engine, resolved={**common, **resolved})
    found = made.row()
    for name in ("baseline_tokens_per_second", "tokens_per_second"):
        found[name] *= speed
    return found


def test_engines_stand_beside_each_other_and_differ_in_nothing() -> None:
    rows = [row("native"), row("transformers", 0.5)]
    (group,) = by_engine(rows)
    table = engines_table(group)
    assert [line[0] for line in table.lines] == ["native", "transformers"]
    assert table.findings == [
        "K 4: native decodes 2.000 times as fast as transformers without a draft and 2.000 times with it "
        "(ratios of totals)",
        "K 4: accepted tokens are equal: native 24 of 33 in 12 rounds, transformers 24 of 33 in 12 rounds",
    ]


def test_what_differs_is_named() -> None:
    other = row("transformers", tier_resolved="compile", threads=4, engine_notes="counted; no tree")
    other["accepted"] = 7
    found = engines_table([row("native"), other]).findings
    assert "tier differs: native eager, transformers compile" in found
    assert "threads differs: native 2, transformers 4" in found
    assert any(line.startswith("K 4: accepted tokens in all, by the rounds that each engine counts") for line in found)
    assert found[-2:] == ["transformers: counted", "transformers: no tree"]


def test_a_cell_without_numbers_keeps_its_line() -> None:
    failed = {**row("transformers"), "status": "error"}
    table = engines_table([row("native"), failed])
    assert table.lines[1][:1] == ["transformers"]
    assert "error" in table.lines[1]
    assert not any("times as fast" in line for line in table.findings)


def test_one_engine_needs_no_table() -> None:
    assert by_engine([row("native"), row("native")]) == []
