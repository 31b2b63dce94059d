"""`specbench drafts`: the directory of public drafts, and what it says of them."""

import json

import pytest

from specbench.backends.engines import arms
from specbench.models.checkpoints.names import HUB_ID, published
from tests.support.frontdoor import Command

ENTRIES = [(target, one) for target, some in published().items() for one in some]


@pytest.mark.parametrize(("target", "one"), ENTRIES, ids=[f"{target} {one.draft}" for target, one in ENTRIES])
def test_an_entry_can_be_used_as_it_stands(target: str, one: object) -> None:
    found = vars(one)
    assert HUB_ID.fullmatch(target)
    assert found["draft"] is None or HUB_ID.fullmatch(found["draft"])
    assert (found["draft"] is None) == (found["format"] == "inside")
    assert found["method"] in arms.ENGINES["vllm-serve"].named
    assert found["source"]
    if found["length"]:
        assert found["conditions"], "a number says what it was measured on"
        assert found["k"] is None or found["length"] <= found["k"] + 1


def test_a_target_is_named_by_a_part_of_its_name(command: Command) -> None:
    found = command("drafts", "qwen3-8B")
    assert (found.code, "drafts of Qwen/Qwen3-8B, as published" in found.out) == (0, True)
    rows = json.loads(command("drafts", "Qwen3-", "--format", "json").out)
    assert {row["target"] for row in rows} >= {"Qwen/Qwen3-8B", "Qwen/Qwen3-32B"}
    assert all({"licence", "source", "length", "k"} <= row.keys() for row in rows)
    assert len(json.loads(command("drafts", "--format", "json").out)) == len(ENTRIES)


def test_a_target_without_drafts_is_refused(command: Command) -> None:
    found = command("drafts", "demo")
    assert (found.code, "no public draft of demo is known" in found.line) == (2, True)
