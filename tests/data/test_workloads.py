"""Workloads that shift from one topic to another: their names, their phases, and that no prompt comes twice."""

import json
from pathlib import Path

import pytest

from specbench.data.prompts import PromptSet
from specbench.data.shifts import is_shift, joined, label, sets_of
from specbench.data.sources import shipped_rows
from specbench.data.workloads import load
from specbench.errors import UsageError
from specbench.wording import grouped


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def loaded(dataset: str, limit: int | None = None) -> PromptSet:
    return load(dataset, letters, limit=limit, seed=0, longest=None)


def texts(path: Path, *names: str, category: str = "x") -> str:
    path.write_text("".join(json.dumps({"id": name, "prompt": name, "category": category}) + "\n" for name in names))
    return f"jsonl:{path}"


def phases(found: PromptSet) -> dict[str, list[str]]:
    return {some[0].category: [one.text for one in some] for some in grouped(found.prompts, lambda one: one.category)}


def test_the_shipped_workload_goes_from_code_to_articles_and_back_to_other_code() -> None:
    found = loaded("shift")
    by_phase = phases(found)
    assert list(by_phase) == ["1 code", "2 articles", "3 code"]
    assert [len(some) for some in by_phase.values()] == [24, 48, 24]
    assert len({one.ids for one in found.prompts}) == len({one.id for one in found.prompts}) == 96
    assert by_phase["2 articles"][0].startswith("Article: ")
    assert found.form == "text, article-summary-1"
    assert shipped_rows("shift") == 96
    assert sets_of("shift") == ("code", "articles")


def test_a_limit_counts_all_prompts_and_divides_them_evenly() -> None:
    assert [len(some) for some in phases(loaded("shift", 20)).values()] == [7, 7, 6]
    with pytest.raises(UsageError, match="this workload needs at least 3"):
        loaded("shift", 2)


def test_any_data_sets_make_a_workload_of_one_name(tmp_path: Path) -> None:
    one = texts(tmp_path / "one.jsonl", "a", "b", "c", "d", "e")
    two = texts(tmp_path / "two.jsonl", "a", "b")
    name = joined([one, two])
    assert is_shift(name)
    assert sets_of(name) == (one, two)
    found = loaded(name)
    assert phases(found) == {"1 one": ["a", "c", "e"], "2 two": ["a", "b"], "3 one": ["b", "d"]}
    assert [prompt.id for prompt in found.prompts] == ["1:a", "1:c", "1:e", "2:a", "2:b", "3:b", "3:d"]
    assert found.sha256 == loaded(name).sha256 != loaded(joined([two, one])).sha256


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["code"], "name two or more different ones"),
        (["code", "code"], "name two or more different ones"),
        (["code", "shift"], "shift is a shifted workload already"),
        (["code", "jsonl:a,b.jsonl"], "a comma would end its name here"),
    ],
)
def test_what_is_no_shift_is_refused_in_one_line(names: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        joined(names)
    assert "\n" not in str(refusal.value)


def test_a_data_set_with_one_prompt_cannot_come_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has only one"):
        loaded(f"shift:{texts(tmp_path / 'one.jsonl', 'a')},articles", 9)


def test_phases_are_sorted_as_they_come() -> None:
    assert label(2, "jsonl:/somewhere/else.jsonl") == "2 else"
    assert not is_shift("code")
    assert not is_shift("jsonl:shift")
