"""Prompts of a length asked for: made, cut, or filled; never longer, the same for the same seed and number."""

from pathlib import Path

import pytest

from specbench import hub
from specbench.data.longtext import LENGTH, cut, long_rows
from specbench.data.sources import LONG, PG19, is_known
from specbench.hub import Repository
from tests.support.datafiles import bytes_of, complaint, jsonl, load, parquet, texts

MADE = ("needle", "passkey", "longdoc")


def words_of(text: str) -> list[int]:
    return [len(word) for word in text.split()]


@pytest.mark.parametrize("length", [400, 1000, 5000])
@pytest.mark.parametrize("kind", MADE)
def test_prompts_reach_the_length_and_never_exceed_it(kind: str, length: int) -> None:
    found = load(f"{kind}:{length}", limit=6, longest=length)
    sizes = [len(prompt.ids) for prompt in found.prompts]
    assert len(sizes) == 6
    assert length * 0.9 < min(sizes) <= max(sizes) <= length
    assert found.rejected == {}


@pytest.mark.parametrize("kind", ["needle", "passkey"])
def test_the_answer_stands_in_the_text_at_the_depth_of_its_category_and_continues_it(kind: str) -> None:
    rows, revision = long_rows(f"{kind}:4000", bytes_of, limit=10, seed=3, longest=None)
    assert revision is None
    assert {row["category"] for row in rows} == {f"depth {n}" for n in (10, 30, 50, 70, 90)}
    for row in rows:
        text, answer = str(row["prompt"]), str(row["answer"])
        last = {"needle": ">>> pass_key\n", "passkey": "The pass key is "}[kind]
        place = text.index(f"{last}{answer}") / len(text)
        assert text.endswith(last.rstrip(" "))
        assert place == pytest.approx(int(str(row["category"]).split()[1]) / 100, abs=0.12)
    assert len({row["answer"] for row in rows}) == 10


@pytest.mark.parametrize("kind", MADE)
def test_a_prompt_depends_on_seed_and_number_alone(kind: str) -> None:
    few, many, other = (load(f"{kind}:600", limit=n, seed=seed) for n, seed in ((3, 1), (7, 1), (3, 2)))
    assert texts(many)[:3] == texts(few)
    assert not set(texts(few)) & set(texts(other))
    assert few.sha256 == load(f"{kind}:600", limit=3, seed=1).sha256 != other.sha256
    assert len(set(texts(many))) == 7


def test_without_a_length_it_is_what_fits() -> None:
    assert max(len(p.ids) for p in load("needle", longest=500, limit=2).prompts) <= 500
    assert LENGTH * 0.9 < max(len(p.ids) for p in load("longdoc", longest=5000, limit=2).prompts) <= LENGTH
    assert len(load("passkey:400").prompts) == 20
    assert {p.category for p in load("longdoc:500", limit=2).prompts} == {"code", "articles"}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("asked", ["", "x", "-3", "0", "1.5", "²"])
def test_a_length_that_is_none_is_refused(kind: str, asked: str) -> None:
    assert f"its LENGTH must be a number of tokens, as in {kind}:{LENGTH}" in complaint(f"{kind}:{asked}")


@pytest.mark.parametrize("kind", LONG)
def test_what_the_models_cannot_take_is_refused_before_it_is_made(kind: str) -> None:
    said = complaint(f"{kind}:99999999999", longest=700)
    assert "too long for these models: at most 700" in said
    assert f"{kind}:700 or fewer new tokens" in said


def test_a_length_without_place_is_refused_names_are_listed_and_text_is_cut_behind_a_word() -> None:
    assert "no place for filler: choose a longer one" in complaint("needle:20")
    assert "needle:LENGTH, passkey:LENGTH, longdoc:LENGTH, pg19:LENGTH" in complaint("zzz")
    assert "did you mean needle:512?" in complaint("nedle:512")
    text = "one two  three\nfour"
    assert cut(text, 3, words_of) == "one two  three"
    assert cut(text, 9, words_of) == text
    assert cut(text, 0, words_of) == cut("", 5, words_of) == ""
    assert cut(text, 7, bytes_of) == "one two"


def test_books_are_cut_and_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def one_file(repository: Repository, file: str) -> Path:
        asked.append((repository.id, repository.revision, file))
        return tmp_path / "books.parquet"

    parquet(tmp_path / "books.parquet", *({"short_book_title": "", "text": f"book{n} " * 99} for n in range(9)))
    monkeypatch.setattr(hub, "one_file", one_file)
    found, other = load("pg19:25", limit=4, seed=1), load("pg19:25", limit=4, seed=2)
    assert asked == [("emozilla/pg19", PG19.revision, PG19.file)] * 2
    assert all(len(prompt.ids) == 23 for prompt in found.prompts), "four words of five bytes"
    assert found.revision == PG19.revision
    assert {p.id for p in found.prompts} != {p.id for p in other.prompts}
    assert {p.id for p in found.prompts} < {p.id for p in load("pg19:25", limit=6, seed=1).prompts}


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


def test_sets_that_are_made_to_a_length_take_it_from_the_context_and_what_cannot_be_filled_is_refused(
    tmp_path: Path,
) -> None:
    assert texts(load("needle", context=500, limit=3)) == texts(load("needle:500", limit=3))
    assert "both set the length of prompts" in complaint("longdoc:400", context=500)
    data = jsonl(tmp_path / "a.jsonl", {"text": "alone"})
    assert "has one text and no others to fill a context of 50 tokens" in complaint(data, context=50)
    assert "--context 500 is too long for these models: at most 400" in complaint("code", context=500, longest=400)


def test_a_length_may_be_left_to_the_context() -> None:
    assert all(is_known(kind) and is_known(f"{kind}:512") for kind in LONG)
