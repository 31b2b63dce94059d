"""`specbench run` through its front door: a tiny pair, whole runs, and everything that they leave behind."""

import csv
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from specbench.cli import app
from specbench.decoding import build
from specbench.decoding.randomness import Source
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verify import TokenMatch
from specbench.models import loading
from tests.tinypair import CONTEXT, Pair, change_weights, prompts, save_pair, save_tokenizer

torch.set_num_threads(1)

SHORT = ("--limit", "2", "--max-new-tokens", "8", "--warmup", "0", "--k", "3")


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it left in its folder."""

    code: int
    out: str
    err: str
    cwd: Path

    @property
    def folder(self) -> Path:
        (folder,) = (self.cwd / "results").iterdir()
        return folder

    def table(self, name: str = "results.csv") -> list[dict[str, str]]:
        return list(csv.DictReader((self.folder / name).open(encoding="utf-8", newline="")))

    def journal(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    @property
    def line(self) -> str:
        """The one line on stderr with which the command ended."""
        assert self.err.startswith("specbench: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`specbench` with the given arguments, in an empty folder."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["specbench", *map(str, arguments)])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err, tmp_path)

    return call


@pytest.fixture
def run(command: Command, pair: Pair, tmp_path: Path) -> Command:
    """`specbench run` on the tiny pair and three short prompts, unless the arguments say otherwise."""

    def call(*arguments: object, data: str | None = None) -> Outcome:
        dataset = data or prompts(tmp_path / "words.jsonl", 4, 6, 5)
        return command("run", *pair.options, "--dataset", dataset, *SHORT, *arguments)

    return call


# --- a whole run ------------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_table_on_stdout_and_its_folder_on_disk(run: Command) -> None:
    found = run()
    assert found.code == 0, found.err
    assert "speedup" in found.out
    assert {p.name for p in found.folder.iterdir()} == {
        "run.json", "journal.jsonl", "results.csv", "samples.csv", "rounds.parquet",
    }  # fmt: skip
    assert found.folder.name.split("_")[1:3] == ["target", "draft"]
    assert found.err.splitlines()[-1] == f"results: results/{found.folder.name}"


def test_the_row_of_a_run_holds_its_numbers_and_where_they_come_from(run: Command, pair: Pair) -> None:
    (row,) = run().table()
    assert (row["status"], row["prompts"], row["lossless"], row["k"]) == ("ok", "2", "identical", "3")
    assert (row["target_source"], row["dtype_resolved"], row["device"]) == (str(pair.target), "float32", "auto")
    assert 0 < float(row["alpha"]) < 1
    assert all(float(row[name]) > 0 for name in ("speedup", "speedup_calibrated", "c", "v", "tokens_per_second"))
    assert int(row["tokens"]) == int(row["baseline_tokens"]) <= 16


def test_samples_rounds_and_journal_tell_the_same_story(run: Command) -> None:
    found = run("--repeat", 2)
    (row,), samples = found.table(), found.table("samples.csv")
    rounds = pd.read_parquet(found.folder / "rounds.parquet")
    measured = [line for line in found.journal() if "sample" in line]
    assert len(samples) == len(measured) == 4
    assert sum(int(s["tokens"]) for s in samples) == rounds["emitted"].sum() == int(row["tokens"])
    assert rounds["accepted"].sum() == int(row["accepted"])
    assert found.journal()[-1] == {"cell": row["cell"], "status": "ok", "error": ""}


def test_run_json_says_how_to_run_it_again(run: Command) -> None:
    described = json.loads((run("--seed", 5).folder / "run.json").read_text())
    assert described["command"].startswith("specbench run --target")
    assert described["specs"][0]["seed"] == 5
    assert described["environment"]["torch"] == torch.__version__


def test_the_same_command_decodes_the_same_tokens(run: Command) -> None:
    sampling = ("--temperature", "1.0", "--ignore-eos", "--seed", "3")
    outputs = []
    for _ in range(2):
        found = run(*sampling)
        outputs.append([line["sample"]["method"]["tokens"] for line in found.journal() if "sample" in line])
        shutil.rmtree(found.cwd / "results")
    assert outputs[0] == outputs[1]
    assert [len(tokens) for tokens in outputs[0]] == [8, 8]


@pytest.mark.parametrize(
    ("style", "parse"),
    [
        ("csv", lambda text: list(csv.DictReader(io.StringIO(text)))[0]),
        ("json", lambda text: json.loads(text)[0]),
        ("jsonl", lambda text: json.loads(text.splitlines()[0])),
    ],
)
def test_every_format_holds_what_lies_on_disk(run: Command, style: str, parse: Callable[[str], dict[str, str]]) -> None:
    found = run("--format", style, "-q")
    row = parse(found.out)
    assert float(row["speedup"]) == float(found.table()[0]["speedup"])
    assert found.err == ""


def test_markdown_is_a_table(run: Command) -> None:
    assert run("--format", "md").out.startswith("| | jsonl:")


def test_quiet_prints_nothing_but_the_result(run: Command) -> None:
    found = run("--quiet")
    assert (found.code, found.err) == (0, "")
    assert "speedup" in found.out


def test_verbose_prints_settings_and_environment_on_stderr(run: Command) -> None:
    found = run("-v")
    assert '"max_new_tokens": 8' in found.err
    assert '"python": ' in found.err
    assert '"python": ' not in found.out


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_lookahead_of_zero_is_the_baseline(run: Command) -> None:
    (row,) = run("--k", 0).table()
    assert (row["drafted"], row["accepted"], row["alpha"], row["c"]) == ("0", "0", "", "0.0")
    assert (row["speedup_predicted"], row["tokens_per_round"], row["lossless"]) == ("1.0", "1.0", "identical")


@pytest.mark.parametrize("method", ["baseline", "token-match", "chain"])
def test_every_method_decodes_what_the_baseline_decodes(run: Command, method: str) -> None:
    (row,) = run("--method", method).table()
    assert (row["method"], row["lossless"], row["prompts_identical"]) == (method, "identical", "2")
    assert (int(row["drafted"]) > 0) == (method != "baseline")


def test_sampling_with_every_warper(run: Command) -> None:
    law = ("--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--eta", "0.001")
    (row,) = run(*law).table()
    assert [row[n] for n in ("temperature", "top_k", "top_p", "min_p", "eta")] == ["0.8", "20", "0.9", "0.01", "0.001"]
    assert (row["status"], row["lossless"]) == ("ok", "not compared")


def test_the_draft_has_the_targets_dtype_unless_it_is_told_otherwise(run: Command) -> None:
    (row,) = run("--dtype", "float64").table()
    assert (row["dtype_resolved"], row["draft_dtype_resolved"]) == ("float64", "float64")


def test_the_draft_can_have_a_dtype_of_its_own(run: Command) -> None:
    (row,) = run("--dtype", "float64", "--draft-dtype", "float32").table()
    assert (row["dtype_resolved"], row["draft_dtype_resolved"]) == ("float64", "float32")


def test_two_data_sets_are_two_cells_and_one_given_twice_is_one(run: Command, tmp_path: Path) -> None:
    other = prompts(tmp_path / "other.jsonl", 3, 3)
    rows = run("--dataset", other, "--dataset", other).table()
    assert [row["dataset"].rsplit("/", 1)[-1] for row in rows] == ["words.jsonl", "other.jsonl"]


def test_a_config_file_has_the_same_keys_and_the_command_line_wins(command: Command, pair: Pair, tmp_path: Path) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    (tmp_path / "run.yaml").write_text(
        f"target: {pair.target}\ndraft: {pair.draft}\ndataset: {data}\nk: 2\nmax-new-tokens: 5\nwarmup: 0\nlimit: 2\n"
        "output-dir: elsewhere\nformat: json\nignore_eos: true\n"
    )
    found = command("run", "--config", tmp_path / "run.yaml", "--k", 3, "--limit", 1)
    (row,) = json.loads(found.out)
    assert (row["k"], row["limit"], row["max_new_tokens"], row["tokens"]) == (3, 1, 5, 5)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_prompts_that_are_too_long_are_left_out_and_counted(run: Command, tmp_path: Path) -> None:
    fits = CONTEXT - 8 - 3 - 1
    found = run("--limit", 3, data=prompts(tmp_path / "long.jsonl", 4, fits, fits + 1))
    assert found.table()[0]["rejected"] == "1 too long"
    assert [s["prompt_tokens"] for s in found.table("samples.csv")] == ["4", str(fits)]
    assert "left out 1 too long" in found.out


# --- runs that fail ---------------------------------------------------------------------------------------------------


def spoilt(pair: Pair, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of the target with changed weights."""
    place = shutil.copytree(pair.target, folder / "spoilt")
    change_weights(place, change)
    return place


def fill(name: str, row: int | slice, value: float) -> Callable[[dict[str, Tensor]], None]:
    return lambda weights: weights[name][row].fill_(value) and None


def test_nan_weights_are_a_row_with_a_status_and_no_number(run: Command, pair: Pair, tmp_path: Path) -> None:
    found = run("-q", "--target", spoilt(pair, tmp_path, fill("model.norm.weight", slice(None), float("nan"))))
    (row,) = found.table()
    assert (found.code, row["status"], row["speedup"], row["alpha"]) == (6, "nan", "", "")
    assert "NaN" in row["error"]
    assert "1 of 1 cells ended without numbers: a model gave NaN" in found.line


def test_what_was_measured_before_a_nan_stays_on_disk(run: Command, pair: Pair, tmp_path: Path) -> None:
    target = spoilt(pair, tmp_path, fill("model.embed_tokens.weight", 39, float("nan")))
    data = tmp_path / "words.jsonl"
    data.write_text('{"id": "good", "prompt": "w1 w2 w3"}\n{"id": "bad", "prompt": "w39 w2 w3"}\n')
    found = run("--target", target, "--max-new-tokens", 2, data=f"jsonl:{data}")
    assert (found.code, found.table()[0]["status"]) == (6, "nan")
    assert [line["sample"]["prompt"] for line in found.journal() if "sample" in line] == ["good"]
    assert [row["prompt"] for row in found.table("samples.csv")] == ["good"]


class Careless(TokenMatch):
    """Emits the token beside the one that the target drew."""

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        verdict = super().judge(p, draft, rng)
        return replace(verdict, token=(verdict.token + 1) % p.shape[-1])


def test_a_method_that_changes_the_text_is_not_lossless(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(build.PARTS, "TokenMatch", Careless)
    found = run("-q", "--method", "token-match")
    assert (found.code, found.table()[0]["lossless"]) == (5, "MISMATCH")
    assert "do not trust these numbers" in found.line


def test_an_interrupt_leaves_what_was_measured_and_ends_with_130(pair: Pair, tmp_path: Path) -> None:
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from specbench.cli.app import main; main()"
    options = (*SHORT, "--repeat", "100000", "--dataset", prompts(tmp_path / "words.jsonl", 4, 6))
    arguments = [sys.executable, "-c", start, "run", *pair.options, *options, "--output-dir", str(tmp_path / "results")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_lines(tmp_path / "results", 5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    found = Outcome(process.returncode, out, err, tmp_path)
    (row,) = found.table()
    assert (found.code, row["status"], row["prompts"]) == (130, "partial", "2")
    assert len(found.table("samples.csv")) == len([line for line in found.journal() if "sample" in line]) >= 5
    assert float(row["speedup"]) > 0
    assert err.splitlines()[-1] == "specbench: interrupted"
    assert "Traceback" not in err
    assert "partial: interrupted" in out


def wait_for_lines(results: Path, lines: int) -> None:
    for _ in range(1200):
        if any(path.read_text().count("\n") >= lines for path in results.glob("*/journal.jsonl")):
            return
        time.sleep(0.1)
    pytest.fail("nothing was measured in two minutes")


# --- bad input --------------------------------------------------------------------------------------------------------

BAD = [
    (("--k", "-1"), 2, "--k"),
    (("--k", "513"), 2, "--k 513"),
    (("--k", "many"), 2, "--k"),
    (("--temperature", "-0.5"), 2, "--temperature"),
    (("--temperature", "nan"), 2, "--temperature"),
    (("--temperature", "inf"), 2, "--temperature"),
    (("--top-p", "0"), 2, "--top-p"),
    (("--top-p", "nan"), 2, "--top-p"),
    (("--eta", "2"), 2, "--eta"),
    (("--limit", "0"), 2, "--limit"),
    (("--nope",), 2, "No such option: --nope"),
    (("extra",), 2, "extra"),
    (("--format", "xml"), 2, "choose one of table, csv, json, jsonl, md"),
    (("--method", "nope"), 2, "choose one of baseline, chain, token-match"),
    (("--dtype", "int3"), 2, "use auto, float32"),
    (("--device", "abacus"), 2, "use auto, cpu"),
    (("--device", "cuda:99"), 2, "use cpu or auto"),
    (("--dataset", "nope"), 2, "unknown data set nope"),
    (("--dataset", "jsonl:nope.jsonl"), 2, "no such file: nope.jsonl"),
    (("--dataset", "jsonl:\x1b[31m.jsonl"), 2, "no such file"),
    (("--dataset", "jsonl:\udcff.jsonl"), 2, "--dataset"),
    (("--column", "nope"), 2, "has no column nope"),
    (("--config", "nope.yaml"), 2, "cannot read the configuration nope.yaml"),
    (("--target", "lama-7b"), 4, "did you mean llama-7b"),
    (("--target", "./nope"), 4, "unknown model './nope'"),
    (("--output-dir", "words.jsonl"), 2, "choose another --output-dir"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=[repr(" ".join(a)) for a, *_ in BAD])
def test_bad_input_is_one_line_and_the_exit_code_of_its_kind(
    run: Command, arguments: tuple[str, ...], code: int, text: str
) -> None:
    found = run(*arguments, "-q")
    assert (found.code, found.out) == (code, ""), found.err
    assert text in found.line
    assert found.line.isprintable()
    assert not (found.cwd / "results").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("lookahead: 4\n", "unknown setting lookahead; known are column, dataset"),
        ("k: many\n", "--k 'many'"),
        ("k:\n", "--k None"),
        ("dataset: [[a]]\n", "--dataset ['a']"),
        ("dataset: {a: b}\n", "--dataset {'a': 'b'}"),
        ("output-dir: [1]\nk: -1\n", "--k -1"),
        ("- a\n- b\n", "expected keys and values"),
        ("k: [1\n", "is not readable as YAML"),
        ("k: \x1b\n", "is not readable as YAML"),
    ],
)
def test_a_bad_config_is_one_line(command: Command, tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "run.yaml").write_text(content)
    found = command("run", "--config", tmp_path / "run.yaml")
    assert found.code == 2
    assert text in found.line


def test_no_command_at_all_shows_the_help(command: Command) -> None:
    found = command()
    assert (found.code, found.err) == (2, "")
    assert "predict" in found.out


def not_to_be_called(*arguments: object) -> None:
    raise AssertionError("weights are read although the run cannot be")


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", not_to_be_called)


@pytest.mark.usefixtures("unloadable")
def test_one_empty_data_set_ends_the_run_before_weights_are_read(run: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    found = run("--dataset", f"jsonl:{tmp_path / 'empty.jsonl'}")
    assert found.code == 2
    assert "empty.jsonl has 0 usable rows" in found.line


@pytest.mark.usefixtures("unloadable")
def test_prompts_that_are_all_too_long_end_the_run_before_weights_are_read(run: Command, tmp_path: Path) -> None:
    found = run(data=prompts(tmp_path / "long.jsonl", CONTEXT, CONTEXT + 1))
    assert found.code == 2
    assert "0 usable rows (2 read: 2 too long)" in found.line
    assert "fewer new tokens leave room" in found.line


@pytest.mark.usefixtures("unloadable")
def test_another_tokenizer_ends_the_run_before_weights_are_read(run: Command, pair: Pair, tmp_path: Path) -> None:
    other = shutil.copytree(pair.draft, tmp_path / "other")
    save_tokenizer(other, "v{}")
    found = run("--draft", other)
    assert found.code == 4
    assert "target and draft have different tokenizers" in found.line


@pytest.mark.usefixtures("unloadable")
def test_a_method_file_with_an_unknown_part_ends_the_run_before_weights_are_read(run: Command, tmp_path: Path) -> None:
    header = "summary: s\npaper: p\nlossless: true\n"
    (tmp_path / "my.yaml").write_text(header + "method: {Speculate: {drafter: Oracle, model: target, verifier: Rejection}}\n")
    found = run("--method", tmp_path / "my.yaml")
    assert found.code == 2
    assert "unknown part 'Oracle'" in found.line


@pytest.mark.usefixtures("unloadable")
def test_very_verbose_shows_the_traceback_before_the_line(run: Command) -> None:
    found = run("-vv", "--method", "nope")
    assert found.code == 2
    assert found.err.startswith("Traceback")
    assert found.err.splitlines()[-1].startswith("specbench: unknown method 'nope'")


@pytest.mark.parametrize(("file", "content"), [("model.safetensors", b"\x00" * 99), ("config.json", b"{"), ("tokenizer.json", b"")])
def test_a_corrupt_checkpoint_is_one_line(run: Command, pair: Pair, tmp_path: Path, file: str, content: bytes) -> None:
    place = shutil.copytree(pair.target, tmp_path / "corrupt")
    (place / file).write_bytes(content)
    found = run("--target", place, "-q")
    assert found.code == 4
    assert str(place) in found.line


def test_running_out_of_memory_while_loading_is_one_line(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(loading, "load_model", full)
    found = run()
    assert found.code == 4
    assert "do not fit into the memory of cpu" in found.line
