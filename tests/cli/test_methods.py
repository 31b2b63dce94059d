"""`specbench methods`: every method file, with what it needs and whether it is lossless."""

import csv
import io
import json

import pytest

from specbench.decoding import method_files
from specbench.decoding.method_files import methods, parameters
from tests.support.frontdoor import Command


def test_the_list_has_every_method_with_its_paper(command: Command) -> None:
    rows = json.loads(command("methods", "--format", "json").out)
    assert [row["name"] for row in rows] == list(methods())
    assert all(row["paper"] and row["summary"] for row in rows)
    lossy = {"typical", "lenience", "relaxed", "relaxed-everywhere"}
    assert {row["name"] for row in rows if row["lossless"] == "NO"} == lossy
    known = {row["name"]: (row["needs"], row["parameters"]) for row in rows}
    assert (known["chain"], known["baseline"]) == (("target, draft", "k, schedule"), ("target", ""))


@pytest.mark.parametrize("style", ["table", "md", "csv", "jsonl"])
def test_every_format_names_every_method(command: Command, style: str) -> None:
    found = command("methods", "--format", style)
    assert (found.code, found.err) == (0, "")
    assert all(name in found.out for name in methods())
    if style == "csv":
        assert len(list(csv.DictReader(io.StringIO(found.out)))) == len(methods())


def test_the_list_is_short_and_a_method_that_is_named_is_told_whole(command: Command) -> None:
    shown = command("methods").out
    assert "lenience (lossy)" in shown
    assert "arXiv" not in shown
    chosen = command("methods", "lenience", "chain")
    assert "2211.17192" in chosen.out
    assert "lenience 0.5" in chosen.out
    assert "sequoia" not in chosen.out
    wrong = command("methods", "chian")
    assert (wrong.code, wrong.out) == (2, "")
    assert "did you mean chain?" in wrong.err


def test_numbers_in_a_file_are_parameters_and_those_of_a_part_inside_not_the_k_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parameters("cascade") == ["k", "Cascade k [[k, 2], [0, 2]]"]
    assert parameters("cascade-horizontal") == ["k", "Maxgram k 2"]
    assert method_files.needs("cascade") == {"target", "draft"}
    tree = {"Speculate": {"drafter": {"Tree": {"model": "draft", "widths": [3, 2], "n": 2}}, "model": "target",
                          "verifier": "Rejection"}}  # fmt: skip
    monkeypatch.setattr(method_files, "read_method", lambda name: {"method": tree})
    assert parameters("tree") == ["widths [3, 2]", "n 2"]
    assert method_files.needs("tree") == {"target", "draft"}
