"""From settings to cells: defaults, axes, pairs, and what is refused."""

from itertools import product
from typing import Any

import pytest
import yaml

from specbench.decoding.method_files import read_method
from specbench.errors import UsageError
from specbench.files import CONFIGS
from specbench.measure.grid import AUTO_CEILING, DEFAULT_LIMIT, by_pair, cells
from specbench.measure.parsing import with_batches, with_ks, with_lists
from specbench.spec import RunSpec


def ks(**settings: Any) -> list[Any]:
    found = with_ks(settings)["k"]
    return found if isinstance(found, list) else [found]


def test_nothing_asked_is_the_shipped_pair_at_its_own_k_on_the_shipped_prompts() -> None:
    found = cells({})
    assert [(c.target, c.draft, c.k, c.dataset, c.limit) for c in found] == [
        ("demo", "demo-draft", 2, "code", DEFAULT_LIMIT)
    ]  # fmt: skip
    assert [c.max_new_tokens for c in found] == [48]


def test_a_data_set_that_is_named_is_read_whole() -> None:
    assert [c.limit for c in cells({"dataset": "humaneval"})] == [None]
    assert [c.limit for c in cells({"until_ci": 0.02})] == [None], "until-ci says when it is enough"


def test_the_usual_limit_holds_for_cells_that_do_not_say_when_it_is_enough() -> None:
    assert [c.limit for c in cells({"until_ci": [None, 0.02], "target": "demo"})] == [DEFAULT_LIMIT, None]


def test_every_combination_is_a_cell_and_k_changes_fastest() -> None:
    found = cells(
        {"k": [1, 2], "dataset": ["code", "articles"], "temperature": [0, 1], "method": ["chain", "token-match"]}
    )
    assert len(found) == 16
    assert [(c.dataset, c.temperature, c.method, c.k) for c in found[:5]] == [
        ("code", 0, "chain", 1), ("code", 0, "chain", 2), ("code", 0, "token-match", 1), ("code", 0, "token-match", 2),
        ("code", 1, "chain", 1),
    ]  # fmt: skip


def test_a_cell_that_is_named_twice_is_measured_once() -> None:
    assert len(cells({"k": [2, 2], "dataset": ["code", "code"]})) == 1
    found = cells({"method": ["baseline", "chain"], "k": [1, 2, 3], "dataset": "code"})
    assert [(c.method, c.k) for c in found] == [("baseline", 0), ("chain", 1), ("chain", 2), ("chain", 3)]


def test_what_chooses_its_k_is_one_cell_beside_methods_with_several() -> None:
    found = cells({"method": ["auto", "chain"], "k": [2, 4], "dataset": "code"})
    assert [(c.method, c.k) for c in found] == [("auto", 8), ("chain", 2), ("chain", 4)]


def test_auto_is_a_schedule_with_a_ceiling() -> None:
    found = cells({"k": [2, "auto"], "dataset": "code"})
    assert [(c.schedule, c.k) for c in found] == [("constant", 2), ("auto", AUTO_CEILING)]
    assert [(c.schedule, c.k) for c in cells({"schedule": "heuristic", "k": 6, "dataset": "code"})] == [
        ("heuristic", 6)
    ]
    assert [c.k for c in cells({"schedule": "confidence", "dataset": "code"})] == [AUTO_CEILING]


def test_pairs_are_targets_or_mappings_and_are_loaded_once_each() -> None:
    pair = ["demo", {"target": "llama-7b", "draft": "llama-160m", "dtype": "bfloat16"}]
    found = cells({"pair": pair, "k": [1, 2], "dataset": ["code", "articles"]})
    assert [(g[0].target, g[0].draft, g[0].dtype, len(g)) for g in by_pair(found)] == [
        ("demo", "demo-draft", "auto", 4), ("llama-7b", "llama-160m", "bfloat16", 4),
    ]  # fmt: skip


def test_dtypes_are_pairs_of_their_own() -> None:
    assert len(by_pair(cells({"dtype": ["float32", "bfloat16"], "k": [1, 2]}))) == 2


def test_k_lists_are_read_as_the_command_line_writes_them() -> None:
    assert ks(k="1-4") == [1, 2, 3, 4]
    assert ks(k="1-16+5,auto") == [1, 6, 11, 16, "auto"]
    assert ks(k=[8, "1-2", "auto", 2]) == [1, 2, 8, "auto"]
    assert ks(k=3) == ks(k="3") == [3]
    assert ks(k="auto") == ["auto"]


@pytest.mark.parametrize(
    ("given", "sizes"),
    [("1,4,16", [1, 4, 16]), (["8", 4, "1, 2"], [1, 2, 4, 8]), ("4", 4), (4, 4), ("4,4", 4), ([], [])],
)
def test_batches_are_an_axis_where_there_are_several(given: Any, sizes: Any) -> None:
    found = with_batches({"batch": given, "k": 2})
    assert found == {"batch": sizes, "k": 2}
    assert with_batches({"k": 2}) == {"k": 2}
    if sizes:
        assert [c.batch for c in cells({**found, "dataset": "code"})] == (sizes if isinstance(sizes, list) else [sizes])


def test_a_batch_of_many_digits_is_refused_in_a_short_line() -> None:
    with pytest.raises(UsageError, match="cannot read --batch ") as refusal:
        with_batches({"batch": "9" * 5000})
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("path", sorted((CONFIGS / "grids").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_grids_that_ship_are_cells(path: Any) -> None:
    found = cells(with_ks(yaml.safe_load(path.read_text())))
    assert len(found) > 4
    assert all(isinstance(c, RunSpec) for c in found)


def test_a_method_may_have_the_name_that_engines_give_it() -> None:
    names = {"ngram": "prompt-lookup", "pld": "prompt-lookup", "draft-model": "chain"}
    assert [cell.method for cell in cells({"method": list(names), "k": 2, "dataset": "code"})] == list(
        dict.fromkeys(names.values())
    )
    assert all(read_method(name) == read_method(ours) for name, ours in names.items())  # for commands without cells


def test_methods_lookaheads_and_temperatures_are_lists_where_people_write_lists() -> None:
    found = cells(with_lists({"method": "chain, prompt-lookup", "k": "1-2", "temperature": "0.7,0", "dataset": "code"}))
    assert len(found) == 8
    assert {(one.method, one.k, one.temperature) for one in found} == set(
        product(("chain", "prompt-lookup"), (1, 2), (0.0, 0.7))
    )
