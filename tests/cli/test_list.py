"""`specbench list`: one line per run, with the name by which other commands find it."""

import json
import re
from pathlib import Path

from specbench.show.run_output import FORMATS
from tests.support.frontdoor import Command


def test_every_run_is_a_line_with_its_name_and_answer(run: Command, command: Command) -> None:
    made = run()
    (line,) = json.loads(command("list", "--format", "json").out)
    assert (line["cells"], line["prompts"], line["methods"], line["K"]) == ("1 of 1", "2", "chain", "3")
    assert line["answer"] in ("PROVISIONAL", "UNCLEAR")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", line["began"])
    assert made.folder.name.endswith(line["name"])
    for name in (line["name"], "latest"):
        assert command("verdict", name).code == 0
        assert command("compare", name, name, "--checks", "deterministic").code == 0
    assert line["name"] in command("list").out
    assert all(command("list", "--format", style).code == 0 for style in FORMATS)


def test_what_is_no_run_is_passed_over_and_what_cannot_be_read_is_listed(command: Command, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name, content in (("20260101T000000Z_a_b_c", "{}"), ("20260102T000000Z_a_b_d", '{"specs": [3, {}]}')):
        (results / name).mkdir(parents=True)
        (results / name / "run.json").write_text(content)
    (results / "benchmarks").mkdir()
    found = json.loads(command("list", "--format", "json").out)
    assert [(line["name"], line["answer"]) for line in found] == [("c", "none yet"), ("d", "none yet")]
