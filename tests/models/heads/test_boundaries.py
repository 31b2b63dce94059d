"""Which layers a head reads, by every rule there is, on the examples that are known of public heads."""

from pathlib import Path
from typing import Any

import pytest

from specbench.models.heads.taps import Meaning, boundaries, named_in
from tests.support.checkpoints import llama, refusal_of
from tests.support.head_passes import head_of
from tests.support.heads import write_head

RULES: list[tuple[Meaning, list[int] | None, int, int, tuple[int, ...], str]] = [
    ("either", None, 32, 3, (2, 16, 29), "names none, and these are usual"),
    ("boundary", None, 28, 3, (2, 14, 25), "names none, and these are usual"),
    ("boundary", [2, 18, 33], 36, 3, (2, 18, 33), "names them"),
    ("boundary", [1, 46, 90], 94, 3, (1, 46, 90), "names them"),
    ("either", [1, 46, 90], 94, 3, (2, 47, 91), "names the outputs of layers 1, 46, 90"),  # Qwen3-235B
    ("either", [24, 30, 36], 36, 3, (24, 30, 36), "names them"),  # gpt-oss-120b, the last layer among them
    ("output", [1, 9, 17, 25, 33], 36, 5, (2, 10, 18, 26, 34), "names the outputs"),
    ("output", [0, 5], 6, 2, (1, 6), "names the outputs"),
    ("output", None, 36, 5, (2, 10, 18, 26, 34), "usual"),
    ("output", None, 36, 1, (19,), "usual"),
]


@pytest.mark.parametrize(("meaning", "ids", "layers", "count", "expected", "why"), RULES)
def test_the_rule_of_every_format(
    meaning: Meaning, ids: list[int] | None, layers: int, count: int, expected: tuple[int, ...], why: str
) -> None:
    found = boundaries(meaning, ids, layers, count)
    assert found.taken == expected
    assert why in found.why
    assert ", ".join(map(str, expected)) in found.why


def test_what_the_user_names_is_taken_as_it_is() -> None:
    found = boundaries("output", [1, 2, 3], 8, 3, override=(0, 4, 8))
    assert found.taken == (0, 4, 8)
    assert "--aux-layers names them" in found.why


@pytest.mark.parametrize(
    ("ids", "layers", "count", "said"),
    [
        ([1, 2], 8, 3, "reads 3 layers of the target, and there are 2"),
        (None, 8, 5, "reads 5 layers of the target, and there are 0"),
        ([2, 4, 9], 8, 3, "a target of 8 layers has 0 to 8"),
        (None, 4, 3, "in rising order"),
    ],
)
def test_what_a_target_does_not_have_is_refused(ids: list[int] | None, layers: int, count: int, said: str) -> None:
    message = refusal_of(boundaries, "either", ids, layers, count)
    assert said in message
    assert "--aux-layers" in message


NAMED: list[tuple[str, dict[str, Any], tuple[Meaning, list[int] | None]]] = [
    ("eagle3", {}, ("either", None)),
    ("eagle3", {"aux": (1, 4, 6)}, ("either", [1, 4, 6])),
    ("eagle3", {"aux": (1, 4, 6), "names": "speculators"}, ("boundary", [1, 4, 6])),
    ("eagle3", {"config": {"eagle_aux_hidden_state_layer_ids": [5, 4, 3]}}, ("boundary", [3, 4, 5])),
    ("dflash", {"aux": (1, 4)}, ("output", [1, 4])),
    ("dflash", {"aux": (1, 4), "names": "speculators"}, ("boundary", [1, 4])),
    ("dspark", {"aux": (1, 4), "config": {"dflash_config": None, "target_layer_ids": [2, 5]}}, ("output", [2, 5])),
]


@pytest.mark.parametrize(("kind", "how", "expected"), NAMED)
def test_where_the_list_stands_says_what_it_means(
    tmp_path: Path, kind: str, how: dict[str, Any], expected: tuple[Meaning, list[int] | None]
) -> None:
    assert named_in(head_of(write_head(tmp_path, kind, llama(num_hidden_layers=8), **how))) == expected


def test_a_list_of_other_things_is_refused(tmp_path: Path) -> None:
    folder = write_head(tmp_path, "eagle3", llama(), config={"eagle_aux_hidden_state_layer_ids": ["x"]})
    assert "unusable config.json" in refusal_of(named_in, head_of(folder))
