"""What settles an answer: which command is given again, with how many prompts, and when a data set has no more."""

import json
from typing import Any

import pytest

from specbench.data.sources import SHIPPED, shipped_rows
from specbench.judge.settling import LONGEST, repeated
from specbench.judge.verdict import Recommendation, recommend
from tests.judge.test_verdict import row


def settled(command: str = "", **changes: Any) -> Recommendation:
    """The verdict on a cell of xsum, three prompts of a limit of three, that seems to pay."""
    (found,) = recommend([row(**{"prompts": 3, "limit": 3, "command": command, **changes})])
    return found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("specbench run", "specbench run --limit 20"),
        ("specbench run --limit 3 -q", "specbench run -q --limit 20"),
        ("specbench run --limit=3 --k 2", "specbench run --k 2 --limit 20"),
        ("specbench run --limit 3 --limit=4 -n 5 -n6 --num-prompts 7", "specbench run --limit 20"),
        ("specbench sweep-k --k 1-4 -o 'my results'", "specbench sweep-k --k 1-4 -o 'my results' --limit 20"),
        ("specbench sweep grids/mine.yaml --quiet", "specbench sweep grids/mine.yaml --quiet --limit 20"),
        ("specbench run -c mine.yaml", "specbench run -c mine.yaml --limit 20"),
        ("specbench run --template '--limit 3 {text}'", "specbench run --template '--limit 3 {text}' --limit 20"),
        ("specbench run --dataset $(reboot) ; reboot", "specbench run --dataset '$(reboot)' ';' reboot --limit 20"),
        ("specbench run --until-ci 0.02 --limit 10", "specbench run --limit 20"),
    ],
)
def test_the_command_is_given_again_with_more_prompts(command: str, found: str) -> None:
    assert repeated(command, {"--limit": 20}) == found


@pytest.mark.parametrize(
    "command",
    [
        "", "specbench", "specbench verdict results/x", "specbench run; reboot", "pytest run", "specbench run 'open",
        "specbench run --resume results/x", "specbench run --resume=results/x", "specbench sweep -- grid.yaml",
        "specbench run --dataset '\x1b[31m'", "specbench run --dataset '\u202egrid'", "specbench run --dataset '\n'",
        f"specbench run --dataset {'x' * LONGEST}", "specbench run --dataset ' ::error::x'",
    ],
)  # fmt: skip
def test_what_cannot_be_given_again_as_it_stands_is_not_shown(command: str) -> None:
    assert repeated(command, {"--limit": 20}) == ""
    assert settled(command).settle == "settle it: the same run with --limit 20"


def test_a_command_that_would_end_as_early_again_loses_what_ends_it() -> None:
    assert repeated("specbench run --until-ci 0.1", {"--limit": 80}, ends_early=True) == "specbench run --limit 80"
    assert repeated("specbench sweep grid.yaml", {"--limit": 80}, ends_early=True) == ""
    stopped = {"until_ci": 0.06, "prompts": 20, "limit": None, "speedup": 1.03, "half": 0.05}
    found = settled("specbench run --until-ci 0.06 --dataset xsum", **stopped)
    assert (found.answer, found.command) == ("UNCLEAR", "specbench run --dataset xsum --limit 53")
    assert settled("", **stopped).settle == "settle it: the same run with --limit 53, without --until-ci"


def test_on_a_busy_machine_the_same_command_is_enough() -> None:
    busy = {"prompts": 20, "limit": 20, "load_average": 9.5, "threads": 2}
    found = settled("specbench run --limit=20 --until-ci 0.1", **busy, until_ci=0.1)
    assert (found.settle, found.command) == (
        "settle it on a quiet machine", "specbench run --limit=20 --until-ci 0.1",
    )  # fmt: skip
    assert settled("", **busy).settle == "settle it on a quiet machine: the same run"
    both = settled("specbench run --limit 3", load_average=9.5, threads=2)
    assert (both.settle, both.command) == ("settle it on a quiet machine", "specbench run --limit 20")


def test_requests_that_come_at_times_of_their_own_make_a_draw_of_sixteen() -> None:
    found = settled("specbench run", batch=32, arrivals=2.0, prompts=20, draws=1, limit=20)
    assert "--limit 80" in found.command


@pytest.mark.parametrize(("batch", "prompts", "draws", "limit"), [(1, 3, 3, 20), (4, 4, 1, 20), (16, 32, 2, 80)])
def test_a_batch_is_given_enough_prompts_for_five_turns(batch: int, prompts: int, draws: int, limit: int) -> None:
    found = settled("specbench run", batch=batch, prompts=prompts, draws=draws, limit=prompts)
    assert found.command == f"specbench run --limit {limit}"


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": 5, "limit": None},
        {"prompts": 5, "limit": 20},
        {"prompts": 5, "limit": None, "until_ci": 0.5},  # it looks from 20 prompts on
        {"prompts": 5, "limit": 20, "dataset": "pg19:512"},
    ],
)
def test_a_data_set_without_more_prompts_is_said_to_have_none(changes: dict[str, Any]) -> None:
    found = settled("specbench run", **changes)
    assert found.settle == "settle it: the data set has only 5 prompts; use one with at least 20"
    assert (found.command, found.answer) == ("", "PROVISIONAL")


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "partial", "limit": None},  # it was cut off
        {"status": "partial", "limit": 20},
        {"dataset": "code", "limit": 3},
        {"dataset": "needle:512", "limit": 3},
    ],
)
def test_where_there_may_be_more_prompts_they_are_asked_for(changes: dict[str, Any]) -> None:
    assert settled("specbench run --limit 3", **changes).command == "specbench run --limit 20"


def test_no_more_prompts_are_asked_of_a_shipped_set_than_it_has() -> None:
    unclear = {"dataset": "code", "prompts": 20, "limit": 20, "half": 0.05}
    assert settled("specbench run", speedup=1.035, **unclear).command == "specbench run --limit 40"
    found = settled("specbench run", speedup=1.02, **unclear)
    assert found.settle == "settle it: the data set has only 48 prompts; use one with at least 115"
    assert settled("specbench run", speedup=1.02, **{**unclear, "dataset": "needle:99", "limit": None}).command


def test_the_shipped_sets_have_as_many_rows_as_is_said() -> None:
    assert [shipped_rows(name) for name in SHIPPED] == [
        len([json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line])
        for file in SHIPPED.values()
    ]
    assert shipped_rows("xsum") is None
