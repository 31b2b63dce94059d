"""What `specbench train draft` learns from: a cache serves many trainings, and bad data is one line."""

import shutil
from pathlib import Path

from tests.support.datafiles import jsonl
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair, prompts, save_tokenizer

FEW = ("--max-new-tokens", "4", "--batch", "4", "--length", "16", "--hidden", "16", "--layers", "1", "--tokens", "20",
       "--evaluations", "1")  # fmt: skip


def train(command: Command, target: Path, *words: object) -> Outcome:
    return command("train", "draft", "--target", target, *FEW, *words)


def refused(found: Outcome) -> str:
    """The one line that a refusal ends with."""
    assert (found.code, found.out) == (2, "")
    assert "Traceback" not in found.err
    return found.err.strip().splitlines()[-1]


def test_a_cache_serves_other_losses_and_shapes_and_no_other_target(
    command: Command, pair: Pair, tmp_path: Path
) -> None:
    data = prompts(tmp_path / "words.jsonl", *[3 + n % 6 for n in range(12)])
    words = ("--data", data, "--cache", "kept", "--output")
    first = train(command, pair.target, *words, "a").ok()
    assert "12 of 12 prompts answered" in first.err
    before = {file.name: file.read_bytes() for file in (tmp_path / "kept").iterdir() if file.is_file()}
    second = train(command, pair.target, *words, "b", "--loss", "tv", "--layers", "2").ok()
    assert "answered" not in second.err
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "kept").iterdir() if file.is_file()}
    warmer = refused(train(command, pair.target, *words, "c", "--temperature", "1"))
    assert "was made with another temperature: 0.0 there, 1.0 here; delete this folder" in warmer
    assert "was made with another target: " in refused(train(command, pair.draft, *words, "d"))
    shutil.copytree(pair.target, tmp_path / "respelled")
    shutil.copytree(tmp_path / "kept", tmp_path / "forged")
    manifest = tmp_path / "forged" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(pair.target), str(tmp_path / "respelled")))
    save_tokenizer(tmp_path / "respelled", "v{}")
    forged = ("--data", data, "--cache", "forged", "--output", "e")
    assert "was made with another tokenizer: " in refused(train(command, tmp_path / "respelled", *forged))
    (tmp_path / "kept" / "000000.arrow").write_bytes(before["000000.arrow"][:-1])
    assert "is damaged (000000.arrow is not the file" in refused(train(command, pair.target, *words, "f"))


def test_data_without_text_are_one_line_and_leave_the_folder_free(command: Command, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(b"w1 w2 \xff")
    said = refused(train(command, pair.target, "--as-it-is", "--data", f"text:{tmp_path}/texts", "--output", "a"))
    assert said.endswith("(1 not UTF-8 (files, from the first such byte on)): give data with text")
    said = refused(train(command, pair.target, "--data", f"text:{tmp_path}/texts", "--output", "a"))
    assert said.endswith("is a folder of text, which has no prompts: add --as-it-is")
    said = refused(train(command, pair.target, "--data", jsonl(tmp_path / "a.jsonl", {"prompt": " "}), "--output", "a"))
    assert "has 0 usable rows (1 read: 1 empty)" in said
    one = jsonl(tmp_path / "b.jsonl", {"prompt": "w1 w2"})
    assert "one more is needed to be held out" in refused(train(command, pair.target, "--data", one, "--output", "a"))


def test_what_is_not_used_is_said(command: Command, pair: Pair, tmp_path: Path) -> None:
    rows = [{"text": f"w{n} w{n + 1} w3"} for n in range(6)]
    data = jsonl(tmp_path / "a.jsonl", *rows, {"text": ""}, {"text": None}, {"text": 3})
    found = train(command, pair.target, "--as-it-is", "--data", data, "--output", "a").ok()
    assert "5 sequences to learn, 1 held out; not used: 2 empty, 1 not text" in found.err
