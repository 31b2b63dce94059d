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
    given = ["--preset", "chen2023-xsum", "--config", file, "--temperature", "0.5"]
    done = command("config", "show", *given, "--format", "json")
    assert done.code == 0, done.err
    found = {row["setting"]: (row["value"], row["from"]) for row in json.loads(done.out)}
    assert found["temperature"] == ("0.5", "command line")
    assert found["k"] == ("9", str(file))
    assert found["limit"] == ("7", str(file))
    assert found["top_p"] == ("0.8", "preset chen2023-xsum")
    assert found["warmup"] == ("2", "default")
    assert found["tier"][1] == "default"
    assert "format" not in found


def test_config_alone_shows_every_setting(command: Command) -> None:
    assert command("config") == command("config", "show")
    assert command("config").code == 0


def test_a_list_shows_all_its_values(command: Command) -> None:
    done = command("config", "show", "--batch", "1,4", "--format", "json")
    assert next(row["value"] for row in json.loads(done.out) if row["setting"] == "batch") == "1, 4"


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


@pytest.mark.parametrize(("arguments", "meant"), [
    (("run", "--method", "chian"), "unknown method 'chian' (did you mean chain?)"),
    (("run", "--dataset", "humanevl"), "(did you mean humaneval?)"),
    (("run", "--tier", "compil"), "--tier 'compil' (did you mean compile?): choose 'auto', 'eager', 'graph' or"),
    (("run", "--format", "tabel"), "unknown --format 'tabel' (did you mean table?): choose one of table, csv"),
    (("sweep", "metods"), "(did you mean methods?): name a file, or auto, ci, demo, long, methods"),
])  # fmt: skip
def test_a_mistyped_name_is_answered_with_the_nearest(command: Command, arguments: tuple[str, ...], meant: str) -> None:
    done = command(*arguments)
    assert done.code == 2
    assert meant in done.err


def test_a_mistyped_key_of_a_configuration_is_named_as_it_was_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("max_tokens: 3\n")
    done = command("run", "--config", "mine.yaml")
    assert done.code == 2
    assert "unknown setting max_tokens (did you mean max_new_tokens" in done.err
    (tmp_path / "mine.yaml").write_text("k: [1, 2]\n")
    assert command("run", "--config", "mine.yaml").line.startswith("specbench: k takes one value here, not a list")


def test_a_path_is_not_answered_with_names_of_models(command: Command) -> None:
    done = command("run", "--target", "./nowhere")
    assert (done.code, done.line) == (
        4, "specbench: unknown model './nowhere': there is no such folder and no such GGUF file",
    )  # fmt: skip


def test_choices_of_a_command_are_refused_in_its_own_words(command: Command) -> None:
    assert (
        "Invalid value for '--format': 'csv' is not one of 'table', 'json', 'md'"
        in command("verdict", "x", "--format", "csv").line
    )


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
