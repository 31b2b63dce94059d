"""`specbench config show`, completion by the shell, and what is said of mistyped names."""

import json
from pathlib import Path

import pytest

from specbench.cli.help import beginning, completed, grid_names, run_names
from specbench.cli.options import OWN, setting
from specbench.decoding.method_files import methods
from specbench.errors import UsageError
from specbench.models.checkpoints.names import aliases
from specbench.results.named_runs import found_run
from specbench.spec import CHOOSING
from tests.support.frontdoor import Command


def test_every_setting_says_where_it_comes_from(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("limit: 7\nk: 9\nformat: md\n")
    given = ["--preset", "chen2023-xsum", "--config", file, "--temperature", "0.5", "--batch", "1,4"]
    done = command("config", "show", *given, "--format", "json").ok()
    found = {row["setting"]: (row["value"], row["from"]) for row in json.loads(done.out)}
    expected = {"temperature": ("0.5", "command line"), "k": ("9", str(file)), "limit": ("7", str(file))}
    expected |= {"top_p": ("0.8", "preset chen2023-xsum"), "warmup": ("2", "default")}
    expected |= {"batch": ("1, 4", "command line")}
    assert {name: found[name] for name in expected} == expected
    assert found["tier"][1] == "default"
    assert "format" not in found
    assert command("config").ok() == command("config", "show")


def test_a_shell_completes_what_specbench_knows() -> None:
    def offered(name: str, typed: str, words: tuple[str, ...] = ()) -> list[str]:
        return list(completed(name, words)["autocompletion"](typed))

    assert offered("method", "cha") == ["chain"]
    assert offered("method", "") == [*methods(), CHOOSING]
    assert offered("target", "demo") == [name for name in aliases() if name.startswith("demo")]
    assert offered("dataset", "js") == ["jsonl:"]
    assert offered("preset", "chen2023-h") == ["chen2023-humaneval"]
    assert offered("format", "json") == ["json", "jsonl"]
    assert offered("tier", "c", setting("tier").words) == ["compile"]
    assert completed("limit") == {}
    assert OWN["preset"].parameter.annotation.__metadata__[0].autocompletion("spec-") == ["spec-bench"]
    assert "methods" in grid_names()


def test_runs_are_completed_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results" / "20260101T000000Z_a_b_aaaa1111").mkdir(parents=True)
    (tmp_path / "results" / "20260101T000000Z_a_b_aaaa1111" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    complete = beginning(run_names)
    assert (complete("a"), complete("l")) == (["aaaa1111"], ["latest"])
    assert complete("2026") == ["20260101T000000Z_a_b_aaaa1111"]
    assert completed("resume")["autocompletion"]("aaaa") == ["aaaa1111"]
    with pytest.raises(UsageError, match=r"no run is called latst \(did you mean latest\?\): specbench list"):
        found_run(Path("latst"))
    assert found_run(Path("nothing-like-it")) == Path("nothing-like-it")
