"""Every kind of source of prompts: what is read from it, without a network, and what is said when it cannot be read."""

import gzip
import os
import socket
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from specbench.data.loading import load_prompts
from specbench.data.sources import parquet_rows
from specbench.measure.grid import cells
from tests.support.datafiles import complaint, jsonl, load, parquet, texts, write


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, and a request to anywhere fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_lines_of_json_of_text_and_of_csv(tmp_path: Path, end: str) -> None:
    assert texts(load(jsonl(tmp_path / f"a.jsonl{end}", {"prompt": "one\ntwo"}, {"prompt": "ü"}))) == ["one\ntwo", "ü"]
    assert texts(load(f"text:{write(tmp_path / f'a.txt{end}', 'one' + chr(10) + 'two')}")) == ["one", "two"]
    table = 'id,prompt\n1,"a, ""b""\nc"\n2,007\n3,NA\n'
    assert texts(load(f"csv:{write(tmp_path / f'a.csv{end}', table)}")) == ['a, "b"\nc', "007", "NA"]


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    found = load(parquet(tmp_path / "a.parquet", {"id": 3, "text": "one"}, {"id": 4, "text": "two"}))
    assert [(p.id, p.text) for p in found.prompts] == [("3", "one"), ("4", "two")]
    found = load(f"text:{write(tmp_path / 'a.txt', b'one' + bytes([13, 10, 10]) + b'  two')}")
    assert texts(found) == ["one", "  two"]
    assert [p.id for p in found.prompts] == ["row-1", "row-3"]
    assert (found.read, found.rejected) == (3, {"empty": 1})
    odd = "nul \0 escape \x1b[31m separators \x85\u2028\x0c bidi \u202e emoji 🙂"
    assert texts(load(jsonl(tmp_path / "a.jsonl", {"prompt": odd}))) == [odd]
    marked = write(tmp_path / "a.txt", odd.encode("utf-8-sig"))
    assert texts(load(f"text:{marked}")) == [odd]
    assert (
        texts(load(jsonl(tmp_path / "a.jsonl", {"prompt": "2020-01-01"}, {"prompt": "2021-01-01"})))[0] == "2020-01-01"
    )
    assert len(texts(load(f"csv:{write(tmp_path / 'a.csv', 'text' + chr(10) + 'x' * 200_000)}"))[0]) == 200_000
    for text in ("first", "other"):  # of one length, written within one tick of the clock
        assert texts(load(jsonl(tmp_path / "a.jsonl", {"prompt": text}))) == [text]


def test_paths_are_no_patterns_and_may_be_relative_or_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a1.txt", "a[1].txt", "a*.txt", "ü ä#%20.txt"):
        write(tmp_path / name, name)
    for name in ("a[1].txt", "a*.txt", "ü ä#%20.txt"):
        assert texts(load(f"text:{tmp_path / name}")) == [name]
    write(tmp_path / "a.txt", "x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert texts(load("text:a.txt")) == texts(load("text:~/a.txt")) == ["x"]


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(parquet(tmp_path / "a.parquet", {"text": "one"}))
    complaint(f"parquet:{write(tmp_path / 'b.parquet', 'PAR1 not')}")
    complaint(f"csv:{write(tmp_path / 'b.csv', 'text' + chr(10) + 'a,b')}")
    assert capfd.readouterr() == ("", "")


# --- errors of files and names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n\n{"prompt": oops}\n', "a.jsonl:3: not JSON (Expecting value"),
        ("a.jsonl", b'[{"prompt": "a"}]', "a.jsonl:1: a JSON list, not an object; jsonl: needs one object per line"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not JSON"),
        ("a.jsonl", b'{"prompt": ' + b"9" * 5000 + b"}", "a.jsonl:1: not JSON"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "\xe9"}\n', "a.jsonl:2: not UTF-8"),
        (
            "a.jsonl",
            gzip.compress(b'{"prompt": "a"}', mtime=0),
            "is compressed with gzip; give it a name that ends in .gz",
        ),
        ("a.csv", b"prompt,category\na,x\nHello, world,x\n", "a.csv:3: the row has more or fewer cells than"),
        ("a.csv", b"prompt,category\na\n", "a.csv:2: the row has more or fewer cells"),
        ("a.csv", b'prompt\n"a\n', "a.csv:2: not CSV"),
        ("a.csv", b"prompt,prompt\na,b\n", "a.csv:1: column prompt appears twice"),
        ("a.csv", b"x," * 100_000 + b"prompt\n", "a.csv:1: column x appears twice"),
        (
            "a.csv",
            b",".join(b"%d" % n for n in range(100_000)) + b"\n" + b"," * 99_999,
            "choose one of its own with --template: 0, 1, ",
        ),
        ("a.parquet", b"PAR1 no", "as parquet"),
        ("a.parquet", b"", "as parquet"),
        ("a.text", "é".encode("utf-16"), "a.text:1: not UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    write(tmp_path / name, content)
    assert said in complaint(f"{name.split('.')[1]}:{tmp_path / name}")


def test_bad_gzip(tmp_path: Path) -> None:
    for number, data in enumerate((b'{"prompt": "a"}', gzip.compress(b'{"prompt": "a"}', mtime=0)[:-9], b"")):
        path = tmp_path / f"{number}.jsonl.gz"
        path.write_bytes(data)
        assert str(path) in complaint(f"jsonl:{path}")
    path = write(tmp_path / "a.txt.gz", b"good\nb\xff\n")
    assert f"{path}:2: not UTF-8" in complaint(f"text:{path}")


def test_names_that_are_no_file(tmp_path: Path) -> None:
    assert "no such file: /nowhere/a.jsonl" in complaint("jsonl:/nowhere/a.jsonl")
    assert "is a directory" in complaint(f"text:{tmp_path}")
    assert "names no file; write text:PATH" in complaint("text:")
    assert "File name too long" in complaint("text:" + "a" * 5000)
    assert "local path" in complaint("jsonl:https://example.org/a.jsonl")
    assert "local path" in complaint(f"text:{write(tmp_path / 'a::b.txt', 'x')}")
    assert "local path" in complaint("text:~a\0b")


def test_unknown_names_come_with_close_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean humaneval?" in complaint("HumanEvl")
    assert "did you mean jsonl:x.json?" in complaint("json:x.json")
    assert "there are: code, articles, humaneval, xsum, mt_bench, gsm8k, cnn_dailymail" in complaint("\x1b[31mzzz")
    assert "unknown data set" in complaint("")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.md", "one")
    assert "did you mean text:mine.md?" in complaint("mine.md")


@pytest.mark.parametrize(
    ("name", "content", "full"),
    [
        ("a.jsonl", '{"prompt": "one"}', "jsonl:a.jsonl"),
        ("a.JSONL.gz", '{"prompt": "one"}', "jsonl:a.JSONL.gz"),
        ("a.json", '{"prompt": "one"}', "jsonl:a.json"),
        ("a:b.csv", "prompt\none", "csv:a:b.csv"),
        ("a.txt", "one", "text:a.txt"),
    ],
)
def test_a_path_is_read_as_its_ending_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, full: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"no such file: {name}" in complaint(name) or ":" in name
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    found = load(name)
    assert (found.name, texts(found)) == (full, ["one"])
    assert [spec.dataset for spec in cells({"dataset": name, "k": 2})] == [full]


def test_a_path_is_a_path_of_parquet_too_and_spec_bench_is_one(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"text": "one"})
    assert texts(load(str(tmp_path / "a.parquet"))) == ["one"]
    row = {"question_id": 81, "category": "writing", "turns": ["one", "two"]}
    (prompt,) = load(f"spec_bench{jsonl(tmp_path / 'question.jsonl', row).removeprefix('jsonl')}").prompts
    assert (prompt.id, prompt.category, prompt.text) == ("81", "writing", "one")


def test_a_file_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.data.sources.LARGEST", 10)
    assert "cut it to the rows you need" in complaint(f"text:{write(tmp_path / 'a.txt', 'x' * 11)}")


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_gzip_bomb_is_unpacked_no_further_than_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "a.jsonl.gz"
    bomb.write_bytes(gzip.compress(bytes(32 << 20), 1))
    assert f"{bomb}:1: the line is longer than 16 MiB" in complaint(f"jsonl:{bomb}")
    monkeypatch.setattr("specbench.data.sources.LARGEST", 5000)
    write(bomb, '{"prompt": "a"}\n' * 1000)
    assert "holds more than 5,000 bytes, unpacked: cut it to the rows you need" in complaint(f"jsonl:{bomb}")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "text"])
def test_a_line_without_an_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("specbench.data.sources.LONGEST", 100)
    file = write(tmp_path / "a", "prompt\n" + '{"prompt": "' + "x" * 200)
    assert "a:2: the line is longer than 100 bytes; put one prompt on a line" in complaint(f"{kind}:{file}")


def test_rows_and_bytes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.data.sources.MOST", 3)
    rows = [{"text": f"row {n}"} for n in range(4)]
    for data in (
        jsonl(tmp_path / "a.jsonl", *rows),
        parquet(tmp_path / "a.parquet", *rows),
        f"csv:{write(tmp_path / 'a.csv', 'text' + chr(10) + 'x' + chr(10) * 4)}",
    ):
        assert "has more than 3 rows: cut it to those that you need" in complaint(data)
    assert len(load(jsonl(tmp_path / "b.jsonl", *rows[:3])).prompts) == 3
    monkeypatch.undo()
    monkeypatch.setattr("specbench.data.sources.LARGEST", 1 << 20)
    data = parquet(tmp_path / "a.parquet", *[{"text": "x" * 10_000}] * 200)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 17
    assert "holds more than 1 MiB, unpacked" in complaint(data)


def test_a_parquet_file_of_many_rows_is_read_in_seconds(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["word " * 200] * 200_000}), tmp_path / "a.parquet")
    began = time.process_time()
    assert len(parquet_rows(tmp_path / "a.parquet")) == 200_000
    assert time.process_time() - began < 4, "one row takes microseconds"


def test_a_long_prompt_is_too_long_before_it_is_tokenized(tmp_path: Path) -> None:
    def never(text: str) -> list[int]:
        assert len(text) < 1000
        return [1]

    data = jsonl(tmp_path / "a.jsonl", {"prompt": "x" * 5_000_000}, {"prompt": "y"})
    found = load_prompts(data, never, limit=None, seed=0, longest=10)
    assert (texts(found), dict(found.rejected)) == (["y"], {"too long": 1})


@pytest.mark.parametrize("kind", ["jsonl", "csv", "text", "parquet"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe or a device, not a file" in complaint(f"{kind}:{tmp_path / 'pipe'}")
    assert "it is a pipe or a device, not a file" in complaint(f"{kind}:/dev/zero")


@pytest.mark.parametrize("packed", [b"BZh91AY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd\xff", b"PK\x03\x04\xff"])
def test_other_packers_are_named(tmp_path: Path, packed: bytes) -> None:
    assert "is compressed with " in complaint(f"text:{write(tmp_path / 'a.txt', packed + bytes([255]))}")
