"""Texts that are learned as they are: files, folders and rows of data sets as windows of tokens, read part by part."""

import gzip
import os
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from specbench.data.forms import ChatSettings
from specbench.data.loading import load_prompts
from specbench.data.longtext import Encode
from specbench.errors import UsageError
from specbench.training import data as training_data
from specbench.training.cache import Origin, TokenCache, cached, read_manifest
from specbench.training.data import Source, Sources, label_of, sources, text_files
from specbench.training.text import Progress, Watch, documents, text_parts, windows
from tests.support.chats import Spelled
from tests.support.datafiles import jsonl, write

BOS = 2


def encode(text: str) -> list[int]:
    """A token per byte after one that opens a text."""
    return [BOS, *text.encode()]


PLAIN = ChatSettings()


def read(*names: str, encode: Encode = encode, chat: ChatSettings = PLAIN, answered: bool = False) -> Sources:
    load = partial(load_prompts, limit=None, seed=0, longest=None, chat=chat)
    return sources(names, load, encode, answered=answered)


def contents(found: Sources) -> dict[str, str]:
    return {one.name: bytes(one.tokens()[1:]).decode() for one in documents(found, encode)}


def origin(found: Sources, length: int = 16) -> Origin:
    return Origin(kind="text", target="", tokenizer_sha256="a" * 64, vocabulary=256, length=length,
                  prompts_sha256=found.sha256)  # fmt: skip


def complaint(*names: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(*names)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {
        "b.txt": b"one\ntwo", "a/c.md": b"\xef\xbb\xbfthree\r\n", "a/d.py.gz": gzip.compress(b"four", mtime=0),
        "e.bin": b"five", ".git/f.txt": b"six", ".g.txt": b"seven", "empty.txt": b"",
    }.items():  # fmt: skip
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_bytes(content)
    return tmp_path / "texts"


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_folder_is_read_file_by_file(folder: Path) -> None:
    found = contents(read(f"text:{folder}"))
    assert found == {
        "text:texts/a/c.md": "three\n", "text:texts/a/d.py.gz": "four", "text:texts/b.txt": "one\ntwo",
        "text:texts/empty.txt": "",
    }  # fmt: skip


def test_patterns_and_single_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contents(read(f"text:{folder}/**/*.md")) == {"text:*.md/a/c.md": "three\n"}
    assert contents(read(f"text:{folder}/e.*")) == {"text:e.*/e.bin": "five"}
    assert contents(read(f"text:{folder}/b.txt")) == {"text:b.txt/b.txt": "one\ntwo"}
    odd = write(folder / "g[1].txt", b"odd")
    assert contents(read(f"text:{odd}")) == {"text:g[1].txt/g[1].txt": "odd"}
    monkeypatch.chdir(folder)
    assert len(contents(read("text:."))) == 5


def test_a_long_file_is_read_in_parts_that_end_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_data, "LENGTH", 10)
    write(tmp_path / "a.txt", "1234\n6789\nabcdefgh\n" + "x" * 25)
    found = contents(read(f"text:{tmp_path}/a.txt"))
    assert list(found) == ["text:a.txt/a.txt", *(f"text:a.txt/a.txt#{n}" for n in range(2, len(found) + 1))]
    assert "".join(found.values()) == (tmp_path / "a.txt").read_text()
    assert all(len(part) <= 20 for part in found.values())
    assert [part[-1] for part in found.values()][:2] == ["\n", "\n"]


def test_what_is_no_text_is_counted(folder: Path, tmp_path: Path) -> None:
    write(folder / "h.txt", b"good\xff")
    (folder / "i.txt.gz").write_bytes(gzip.compress(b"x" * 1000, mtime=0)[:-9])
    os.mkfifo(folder / "j.txt")
    found = read(f"text:{folder}")
    assert len(contents(found)) == 4
    assert found.left_out == {training_data.NOT_UTF8: 1, training_data.UNREADABLE: 2}
    assert len(contents(found)) == 4
    assert found.left_out.total() == 3, "reading again does not count again"


def test_rows_are_prompts_with_their_answers(tmp_path: Path) -> None:
    data = jsonl(
        tmp_path / "a.jsonl",
        {"id": "f", "prompt": "def f():\n", "canonical_solution": "    return 1"},
        {"id": "g", "prompt": "Say", "category": "talk", "reference": ["yes", "no"]},
        {"id": "h", "prompt": "Alone", "answer": 3},
    )
    found = list(documents(read(data), encode))
    assert [bytes(one.tokens()[1:]).decode() for one in found] == ["def f():\n    return 1", "Say yes", "Alone"]
    assert [(one.name, one.category) for one in found] == [
        ("jsonl:a.jsonl/f", "a"), ("jsonl:a.jsonl/g", "talk"), ("jsonl:a.jsonl/h", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "label", "title"),
    [
        ("code", "code", "code"),
        ("jsonl:/some/where/HumanEval.jsonl.gz", "jsonl:HumanEval.jsonl.gz", "HumanEval"),
        ("text:/some/where/docs/", "text:docs", "docs"),
        ("needle:512", "needle:512", "needle:512"),
        ("text:.", "text:.", "."),
    ],
)
def test_a_source_is_known_by_its_name_alone(name: str, label: str, title: str) -> None:
    assert (label_of(name), Source(name, label_of(name)).title) == (label, title)


def test_rows_are_tokenized_when_they_are_written(tmp_path: Path) -> None:
    def never(text: str) -> list[int]:
        raise AssertionError("all tokens of a data set would be in memory")

    data = jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    lazy = read(data, encode=never)
    assert list(contents(lazy).values()) == ["one", "two"]
    other = read(jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "twO"}))
    assert lazy.sha256 != other.sha256
    assert sum(len(one.tokens()) for one in documents(read("longdoc:50"), encode)) > 0


def test_an_answer_follows_the_chat_template_without_opening_a_text(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]
    data = jsonl(
        tmp_path / "a.jsonl", {"messages": [*said, {"role": "assistant", "content": "Ho"}]}, {"messages": said}
    )
    chat = ChatSettings(Spelled())
    assert ["".join(map(chr, one.tokens())) for one in documents(read(data, chat=chat), encode)] == [
        "own>[u]Hi[a]Ho", "own>[u]Hi[a]",
    ]  # fmt: skip


def test_every_token_is_in_one_window(folder: Path) -> None:
    write(folder / "b.txt", "abcdefghij" * 4)
    for document in documents(read(f"text:{folder}"), encode):
        found = windows(document, 8)
        ids = list(document.tokens())
        assert [token for one in found for token in one.ids] == ids[: len(ids) - (len(ids) % 8 == 1)]
        assert all((one.start, one.prompt, len(one.ids) <= 8) == (1, document.name, True) for one in found)


# --- as a cache -------------------------------------------------------------------------------------------------------


def test_texts_become_a_cache_and_a_killed_one_goes_on(folder: Path, tmp_path: Path) -> None:
    for number in range(30):
        write(folder / f"n{number:02}.txt", f"text {number} " * 8)
    found = read(f"text:{folder}", jsonl(tmp_path / "a.jsonl", {"prompt": "row"}))
    seen: list[Progress] = []
    whole = fill(tmp_path / "whole", found, seen.append)
    assert len(whole.train) > len(whole.held_out) > 0
    assert {one.prompt for one in whole.train}.isdisjoint({one.prompt for one in whole.held_out})
    assert (seen[-1].what, seen[-1].done, seen[-1].total) == ("documents", 35, None)
    assert seen[-1].tokens == sum(one.tokens for one in whole.manifest.shards)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "killed", found, lambda one: stop(one.done == 22))
    parts = read_manifest(tmp_path / "killed").parts
    assert 10 < parts < 22
    tokenized: list[str] = []
    assert fill(tmp_path / "killed", found, lambda _: None, tokenized).manifest == whole.manifest
    assert len(tokenized) == 35 - parts, "what is on disk is not tokenized again"


def fill(path: Path, found: Sources, watch: Watch, tokenized: list[str] | None = None) -> TokenCache:
    def counted(text: str) -> Sequence[int]:
        return ([] if tokenized is None else tokenized).append(text) or encode(text)

    return cached(path, origin(found), partial(text_parts, found, counted, watch), size=300)


def stop(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


def test_a_changed_file_is_another_set_of_texts(folder: Path) -> None:
    before = read(f"text:{folder}").sha256
    assert read(f"text:{folder}").sha256 == before
    write(folder / "b.txt", "one\ntwO")
    changed = read(f"text:{folder}").sha256
    (folder / "b.txt").rename(folder / "c.txt")
    assert len({before, changed, read(f"text:{folder}").sha256}) == 3


def test_a_folder_is_never_in_memory(tmp_path: Path) -> None:
    """100 files of which one alone is read at a time: what Python allocates meanwhile is far below their size."""
    for number in range(100):
        write(tmp_path / f"{number}.txt", f"{number} abc\n" * 10_000)
    found = text_files(str(tmp_path))
    tracemalloc.start()
    try:
        read_bytes = sum(len(text) for _, text in found.parts())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read_bytes > 6_000_000
    assert peak < 1_000_000


# --- refused ----------------------------------------------------------------------------------------------------------


def test_names_without_text(tmp_path: Path) -> None:
    assert "there is nothing to learn from: name some data with --data" in complaint()
    assert "text:a is named twice" in complaint("text:a", "text:b", "text:a")
    assert f"text:{tmp_path}: no such file with one of the endings .txt" in complaint(f"text:{tmp_path}")
    assert "no such file; a pattern names others" in complaint("text:/nowhere/*.txt")
    assert "text: names no file" in complaint("text:")
    assert "no such file" in complaint("text:" + "a" * 5000)
    assert "unknown data set humanevl" in complaint("humanevl")
    with pytest.raises(UsageError, match="is a folder of text, which has no prompts: add --as-it-is"):
        read(f"text:{tmp_path}", answered=True)
    write(tmp_path / "a.txt", b"\xff")
    found = read(f"text:{tmp_path}")
    said = r"no text to learn from in text:.* \(1 not UTF-8 \(files.*: give data with text"
    with pytest.raises(UsageError, match=said):
        fill(tmp_path / "c", found, lambda _: None)


def test_lines_of_a_file_are_prompts_where_they_are_answered(tmp_path: Path) -> None:
    data = f"text:{write(tmp_path / 'a.txt', 'one' + chr(10) + 'two')}"
    assert {one.category for one in documents(read(data), encode)} == {"a.txt"}
    (prompts,) = read(data, answered=True).sets
    assert [prompt.text for prompt in prompts.prompts] == ["one", "two"]
    assert len(contents(read(data))) == 1
