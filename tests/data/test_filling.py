"""Prompts of a length asked for, from any data set: never longer, nearly as long, and their own text at the end."""

from pathlib import Path

import pytest

from tests.support.datafiles import bytes_of, complaint, jsonl, load, texts


@pytest.mark.parametrize("dataset", ["code", "articles"])
def test_prompts_reach_the_length_and_end_with_their_own_text(dataset: str) -> None:
    found = load(dataset, context=6000, limit=5).prompts
    own = {prompt.id: prompt for prompt in load(dataset).prompts}
    for prompt in found:
        assert 6000 * 0.98 < len(prompt.ids) <= 6000
        assert prompt.ids == tuple(bytes_of(prompt.text))
        assert prompt.text.endswith("\n\n" + own[prompt.id].text)
        assert prompt.text.count(own[prompt.id].text) == 1, "what is asked does not stand in the filler"
        assert prompt.category == own[prompt.id].category
    assert len({prompt.text[:200] for prompt in found}) == 5


def test_a_longer_context_ends_as_a_shorter_one_and_depends_on_the_seed_and_the_row_alone() -> None:
    short, long = texts(load("code", context=3000)), texts(load("code", context=5000))
    assert all(b.endswith(a) for a, b in zip(short, long, strict=True))
    assert set(texts(load("code", context=3000, limit=4))) < set(short)
    assert not set(short) & set(texts(load("code", context=3000, seed=1)))


def test_a_text_that_leaves_no_room_stands_alone_and_a_longer_one_is_counted(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"text": "b " * 49 + "bb"}, {"text": "c " * 50 + "c"}, {"text": "d e"})
    found = load(data, context=100)
    assert texts(found)[0] == "b " * 49 + "bb"
    assert texts(found)[1].endswith("\n\nd e")
    assert found.rejected == {"too long": 1}


def test_sets_that_are_made_to_a_length_take_it_from_the_context() -> None:
    assert texts(load("needle", context=500, limit=3)) == texts(load("needle:500", limit=3))
    assert "both say how long prompts are" in complaint("longdoc:400", context=500)


def test_what_cannot_be_filled_is_refused(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"text": "alone"})
    assert "has one text and no others to fill a context of 50 tokens" in complaint(data, context=50)
    assert "--context 500 is too long for these models: at most 400" in complaint("code", context=500, longest=400)
