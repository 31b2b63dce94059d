"""From rows to prompts: which column, what is counted as unusable, how a sample is drawn, what travels."""

import pickle
from collections import Counter
from pathlib import Path

import pytest

from specbench.data import forms, sources
from specbench.data.loading import load_prompts
from specbench.data.prompts import apportion, sample
from specbench.errors import UsageError
from tests.support.datafiles import complaint, jsonl, load, texts, write

DATA = Path(__file__).parents[3] / "shared" / "data"


# --- columns and templates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"task_id": "HumanEval/0", "prompt": "def f():", "test": "x"}, "def f():"),
        ({"document": "News.", "summary": "S", "id": "1"}, "Article: News.\nSummary:"),
        ({"article": "News.", "highlights": "S"}, "Article: News.\nSummary:"),
        ({"question_id": 81, "category": "writing", "turns": ["first", "second"]}, "first"),
        ({"text": "plain {text} {document}"}, "plain {text} {document}"),
        ({"text": "no", "document": "no", "prompt": "yes"}, "yes"),
        ({"question": "one?", "answer": "two", "text": "no"}, "one?"),
        ({"instruction": "Do.", "input": "this", "output": "no", "text": "no"}, "Do.\n\nthis"),
        ({"instruction": "Do.", "input": " ", "output": "no"}, "Do."),
        ({"problem": "one?", "solution": "no"}, "one?"),
        ({"conversation": [{"role": "user", "content": "one?"}]}, "one?"),
        ({"input": "one", "output": "no"}, "one"),
    ],
)
def test_the_column_is_found_by_its_name(tmp_path: Path, row: dict[str, object], text: str) -> None:
    assert texts(load(jsonl(tmp_path / "a.jsonl", row))) == [text]


def test_column_and_template_can_be_named(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"prompt": "p", "question": "{prompt} {0} {{x}} %s"})
    assert texts(load(data, column="question")) == ["{prompt} {0} {{x}} %s"]
    assert texts(load(data, column="question", template="Q: {question}\nA:")) == ["Q: {prompt} {0} {{x}} %s\nA:"]
    assert texts(load(data, template="Q: {question}")) == ["Q: {prompt} {0} {{x}} %s"]
    assert "does not contain {prompt}" in complaint(data, template="no hole")
    assert "more than one column: prompt, question" in complaint(data, column="prompt", template="{prompt}{question}")
    assert "not UTF-8" in complaint(data, column="prompt", template="{prompt}\udcff")


def test_a_missing_column_names_those_there_and_ids_and_categories_are_the_data_sets_own(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"id": 1, "que\x1bstion": "a"}, {"answer": "b"})
    assert "no column prompt; it has: id, que\ufffdstion, answer" in complaint(data, column="prompt")
    assert "choose one of its own with --template: id, que\ufffdstion, answer" in complaint(data)
    ids = [p.id for p in load(jsonl(tmp_path / "a.jsonl", *({"id": i, "text": "x"} for i in (1, 2, 2)))).prompts]
    assert ids == ["row-1", "row-2", "row-3"]
    rows = ({"id": 7, "question_id": "a\x1b\ud800b", "text": "x"}, {"id": 7, "question_id": "c" * 300, "text": "x"})
    assert [p.id for p in load(jsonl(tmp_path / "a.jsonl", *rows)).prompts] == ["a\ufffd\ufffdb", "c" * 80]
    rows = (
        {"text": "x", "category": "a\nb"},
        {"text": "x", "category": 3},
        {"text": "x"},
        {"text": "x", "category": []},
    )
    assert [p.category for p in load(jsonl(tmp_path / "a.jsonl", *rows)).prompts] == ["a\ufffdb", "3", "all", "all"]


# --- rows that cannot be used ----------------------------------------------------------------------------------------


def test_unusable_rows_are_counted_by_reason_and_no_usable_ones_say_what_was_read(tmp_path: Path) -> None:
    values = ["good", "", "  \n", None, 3, {"a": 1}, "x" * 11, "a\ud800b", [], ["turn"], [1], True, "also good"]
    found = load(jsonl(tmp_path / "a.jsonl", *({"prompt": value} for value in values), {"other": 1}), longest=10)
    assert texts(found) == ["good", "turn", "also good"]
    assert found.read == 14
    assert found.rejected == {"empty": 5, "not text": 5, "too long": 1}
    with pytest.raises(UsageError, match="1 empty"):
        load_prompts(jsonl(tmp_path / "a.jsonl", {"text": "x"}), lambda _: [], limit=None, seed=0, longest=None)
    data = jsonl(tmp_path / "a.jsonl", *({"text": "x" * n} for n in (9, 10, 11)))
    assert [len(p.ids) for p in load(data, longest=10).prompts] == [9, 10]
    data = jsonl(tmp_path / "a.jsonl", *({"prompt": text} for text in ("", " ", None, "long", "longer")))
    said = complaint(data, longest=3)
    assert "has 0 usable rows (5 read: 3 empty, 2 too long); a usable row has text of at most 3 tokens" in said
    assert "fewer new tokens" in said
    assert "0 usable rows (5 read: 3 empty, 2 too long)" in complaint(data, longest=-7, limit=1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.jsonl.gz"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file(tmp_path: Path, name: str, content: str) -> None:
    kind = {"jsonl": "jsonl", "csv": "csv", "txt": "text"}[name.split(".")[1]]
    assert "0 usable rows (" in complaint(f"{kind}:{write(tmp_path / name, content)}")


def test_the_limit_is_met_from_the_usable_rows_of_any_category(tmp_path: Path) -> None:
    rows = [{"text": "x" * (20 if i % 2 else 5), "category": "ab"[i >= 20]} for i in range(40)]
    found = load(jsonl(tmp_path / "a.jsonl", *rows, {"text": ""}), limit=10, longest=10)
    assert Counter(p.category for p in found.prompts) == {"a": 5, "b": 5}
    assert found.read == 41
    assert found.rejected["empty"] == 1
    assert 0 < found.rejected["too long"] <= 20
    rows = [{"text": "x" * (20 if i < 9 else 5), "category": "ab"[i >= 10]} for i in range(20)]
    found = load(jsonl(tmp_path / "a.jsonl", *rows), limit=8, longest=10)
    assert Counter(p.category for p in found.prompts) == {"a": 1, "b": 7}
    assert found.rejected == {"too long": 9}


# --- the sample ------------------------------------------------------------------------------------------------------


def spec_bench(path: Path) -> str:
    """In the shape of Spec-Bench: eight categories of ten come first, five of eighty after them."""
    sizes = {f"mt-{i}": 10 for i in range(8)} | {f"big-{i}": 80 for i in range(5)}
    names = [name for name, size in sizes.items() for _ in range(size)]
    return jsonl(path, *({"question_id": i, "category": name, "turns": [f"q {i}"]} for i, name in enumerate(names)))


def test_a_limit_takes_every_category_in_proportion(tmp_path: Path) -> None:
    data = spec_bench(tmp_path / "a.jsonl")
    by_category = Counter(p.category for p in load(data, limit=48).prompts)
    assert by_category == {f"mt-{i}": 1 for i in range(8)} | {f"big-{i}": 8 for i in range(5)}
    assert set(Counter(p.category for p in load(data, limit=13).prompts).values()) == {1}
    assert all(p.category.startswith("big") for p in load(data, limit=5).prompts)
    assert len(load(data, limit=481).prompts) == 480


@pytest.mark.parametrize("limit", [1, 5, 12, 13, 14, 20, 47, 100, 479, 480, 1000])
def test_a_limit_is_met_exactly(tmp_path: Path, limit: int) -> None:
    found = load(spec_bench(tmp_path / "a.jsonl"), limit=limit)
    assert len(found.prompts) == min(limit, 480)
    assert limit < 13 or len({p.category for p in found.prompts}) == 13


def test_the_sample_is_fixed_by_its_seed_and_is_not_the_first_rows(tmp_path: Path) -> None:
    data = spec_bench(tmp_path / "a.jsonl")
    one, again, other = (load(data, limit=20, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.sha256 != other.sha256
    numbers = [int(p.id) for p in one.prompts]
    assert numbers == sorted(numbers) != list(range(20))
    assert [p.id for p in load(data, limit=3, seed=0).prompts] == ["282", "392", "404"], "on every Python"


def test_a_larger_sample_contains_the_smaller_and_rows_are_tokenized_once_and_only_as_drawn() -> None:
    categories = ["a"] * 30 + ["b"] * 10
    small, large = (set(sample(categories, lambda row: row, limit, 5)) for limit in (8, 20))
    assert small < large
    asked: list[int] = []
    sample(["a"] * 10_000, asked.append, 3, 0)  # all refused
    assert sorted(asked) == list(range(10_000))
    asked.clear()
    assert len(sample(["a"] * 10_000, lambda row: asked.append(row) or row, 3, 0)) == len(asked) == 3


def test_apportion_is_the_largest_remainder_with_a_place_for_all() -> None:
    assert apportion(10, [50, 30, 20]) == [5, 3, 2]
    assert apportion(7, [50, 30, 20]) == [4, 2, 1]
    assert apportion(4, [97, 1, 1, 1]) == [1, 1, 1, 1]
    assert apportion(3, [97, 1, 1, 1]) == [3, 0, 0, 0]
    assert apportion(5, [0, 2, 0]) == [0, 2, 0]
    assert apportion(5, []) == []
    for limit in range(1, 60):
        counts = apportion(limit, [1, 40, 2, 7, 0])
        assert sum(counts) == min(limit, 50)
        assert all(c <= size for c, size in zip(counts, [1, 40, 2, 7, 0], strict=True))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(limit: int) -> None:
    assert f"a limit of {limit}" in complaint("code", limit=limit)


# --- what travels ----------------------------------------------------------------------------------------------------


def test_the_hash_knows_every_token_and_its_place_and_a_set_travels(tmp_path: Path) -> None:
    def hash_of(*rows: str) -> str:
        return load(jsonl(tmp_path / "a.jsonl", *({"text": row} for row in rows))).sha256

    hashes = [hash_of("ab", "c"), hash_of("a", "bc"), hash_of("abc"), hash_of("c", "ab"), hash_of("ab", "d")]
    assert len(set(hashes)) == 5
    assert hash_of("ab", "c") == hashes[0]
    found = load(jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": ""}))
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.name == f"jsonl:{tmp_path / 'a.jsonl'}"
    assert found.revision is None
    assert found.prompts[0].ids == (111, 110, 101)


# --- the real thing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "start"), [("code", ""), ("articles", "Article: ")])
def test_the_shipped_sets(name: str, start: str) -> None:
    if not sources.SHIPPED[name].exists():
        pytest.skip(f"{sources.SHIPPED[name]} is not written yet")
    found = load(name)
    assert found.rejected == {}
    assert len(found.prompts) == found.read >= 24
    assert all(p.text.startswith(start) and p.category != "all" for p in found.prompts)
    assert len({p.id for p in found.prompts}) == found.read
    assert len({p.category for p in load(name, limit=8).prompts}) == min(8, len({p.category for p in found.prompts}))


@pytest.mark.parametrize(
    ("file", "rows", "starts", "categories", "later"),
    [
        ("HumanEval.jsonl.gz", 164, "", 1, 0),
        ("xsum_test_50.jsonl", 50, "Article: ", 1, 0),
        ("spec_bench_question.jsonl", 480, "", 13, 80),
    ],
)
def test_the_real_files(file: str, rows: int, starts: str, categories: int, later: int) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"{DATA / file} is not on this machine")
    found = load(f"jsonl:{DATA / file}")
    assert (len(found.prompts), found.read, sum(found.rejected.values())) == (rows, rows, later)
    assert all(p.text.startswith(starts) for p in found.prompts)
    assert len({p.category for p in load(f"jsonl:{DATA / file}", limit=20).prompts}) == categories
    assert len({p.id for p in found.prompts}) == rows


def test_forms_and_columns_agree() -> None:
    known = {**forms.PLAIN, **forms.INSTRUCTIONS, "prompt": forms.HUMANEVAL}
    assert set(known) < set(forms.COLUMNS)
    for column in known:
        every = [form for form in (forms.PLAIN.get(column), forms.INSTRUCTIONS.get(column)) if form]
        assert all(f"{{{column}}}" in form.text for form in every)
    assert "{prompt}" in forms.HUMANEVAL.text
