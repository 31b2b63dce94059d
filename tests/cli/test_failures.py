"""`specbench run` where something is wrong: one line, an exit code, and what was measured stays on disk."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.decoding import parts
from specbench.decoding.randomness import Source
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.token_match import TokenMatch
from specbench.models.checkpoints import loading
from tests.support.frontdoor import SHORT, Command, Outcome
from tests.support.signals import MAIN
from tests.support.tinypair import CONTEXT, Pair, change_weights, prompts, save_tokenizer

# --- runs that fail ---------------------------------------------------------------------------------------------------


def spoilt(pair: Pair, folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy of the target with changed weights."""
    place = shutil.copytree(pair.target, folder / "spoilt")
    change_weights(place, change)
    return place


def test_nan_weights_are_a_row_with_a_status_and_no_number(run: Command, pair: Pair, tmp_path: Path) -> None:
    found = run("-q", "--target", spoilt(pair, tmp_path, lambda w: w["model.norm.weight"].fill_(torch.nan)))
    (row,) = found.table()
    assert (found.code, row["status"], row["speedup"], row["alpha"]) == (6, "nan", "", "")
    assert "NaN" in row["error"]
    assert "1 of 1 cells ended without numbers: a model gave NaN" in found.line


def test_what_was_measured_before_a_nan_stays_on_disk(run: Command, pair: Pair, tmp_path: Path) -> None:
    target = spoilt(pair, tmp_path, lambda w: w["model.embed_tokens.weight"][39].fill_(torch.nan))
    data = tmp_path / "words.jsonl"
    data.write_text('{"id": "good", "prompt": "w1 w2 w3"}\n{"id": "bad", "prompt": "w39 w2 w3"}\n')
    found = run("--target", target, "--max-new-tokens", 2, data=f"jsonl:{data}")
    assert (found.code, found.table()[0]["status"]) == (6, "nan")
    assert [sample.prompt for sample in found.samples()] == ["good"]
    assert [row["prompt"] for row in found.table("samples.csv")] == ["good"]


def test_a_disk_that_fills_up_during_a_run_is_one_line(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def full(file: int) -> None:
        synced.append(file)
        if len(synced) > 4:  # run.json, the folder, the cell's begin and its first turn
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    found = run("-q")
    assert (found.code, found.out) == (2, "")
    assert "No space left on device; choose another --output-dir" in found.line
    assert found.samples()[0].prompt in {"p0", "p1", "p2"}


class Careless(TokenMatch):
    """Emits the token beside the one that the target drew."""

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        verdict = super().judge(p, draft, rng)
        return replace(verdict, token=(verdict.token + 1) % p.shape[-1])


def test_a_method_that_changes_the_text_is_not_lossless(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.PARTS, "TokenMatch", Careless)
    found = run("-q", "--method", "token-match")
    assert (found.code, found.table()[0]["lossless"]) == (5, "MISMATCH")
    assert "differs from the baseline's beyond numerical noise" in found.line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
    ],
)
def test_a_signal_to_a_process_leaves_what_was_measured(
    pair: Pair, tmp_path: Path, number: int, code: int, said: str
) -> None:
    options = (*SHORT, "--tier", "eager", "--repeat", "100000", "--dataset", prompts(tmp_path / "words.jsonl", 4, 6))
    arguments = [sys.executable, "-c", MAIN, "run", *pair.options, *options, "--output-dir", str(tmp_path / "results")]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        wait_for_lines(tmp_path / "results", 5)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    found = Outcome(process.returncode, out, err, tmp_path)
    (row,) = found.table()
    assert (found.code, row["status"], row["prompts"]) == (code, "partial", "2")
    untold = len(found.samples()) - len(found.table("samples.csv"))
    assert untold in {0, 1}, "the interrupt may come after a line of the journal and before the runner has noted it"
    assert len(found.samples()) >= 4  # one of the five lines says that the cell has begun
    assert float(row["speedup"]) > 0
    assert err.splitlines()[-1] == f"specbench: {said}; `specbench run --resume {found.folder}` goes on with it"
    assert "Traceback" not in err
    assert "partial: interrupted" in out


def wait_for_lines(results: Path, lines: int) -> None:
    for _ in range(1200):
        if any(path.read_text().count("\n") >= lines for path in results.glob("*/journal.jsonl")):
            return
        time.sleep(0.1)
    pytest.fail("nothing was measured in two minutes")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(("--format", "a" * 5000), 79), (("--format", "a " * 2500), 40), (("a" * 5000,), 80), (("--" + "a" * 5000,), 78),
     (("--dataset", "jsonl:" + "a/" * 2500), 200)],
)  # fmt: skip
def test_a_long_value_is_not_quoted_at_length(run: Command, arguments: tuple[str, ...], shown: int) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert 0 < found.line.count("a") < shown + 60


def test_a_path_is_quoted_as_a_whole(run: Command, tmp_path: Path) -> None:
    place = tmp_path / ("a" * 120) / "b c"
    for name in (str(place), f"{place}.gguf", f"jsonl:{place}"):
        found = run("--dataset", name) if name.startswith("jsonl:") else run("--target", name)
        assert str(place) in found.line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("lookahead: 4\n", "unknown setting lookahead; known are acceptance, acceptance_source, arrivals"),
        ("k: many\n", "--k: cannot read 'many'"),
        ("k:\n", "--k: cannot read 'None'"),
        ("dataset: [[a]]\n", "--dataset ['a']"),
        ("dataset: {a: b}\n", "--dataset {'a': 'b'}"),
        ("output-dir: [1]\nk: -1\n", "--k: cannot read '-1'"),
        ("- a\n- b\n", "expected keys and values"),
        ("k: [1\n", "is not readable as YAML"),
        ("k: \x1b\n", "is not readable as YAML"),
        ("k: 1\nk: 2\n", "line 1: the key 'k' stands there twice"),
        ("max-new-tokens: 4\nmax_new_tokens: 5\n", "a key stands there twice, with - and with _"),
        ("dataset: &a [*a]\n", "this value contains itself"),
        ("dataset: []\n", "the list of dataset is empty"),
        ("draft: ''\n", "--draft is empty"),
    ],
)
def test_a_bad_config_is_one_line(command: Command, tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "run.yaml").write_text(content)
    found = command("run", "--config", tmp_path / "run.yaml")
    assert found.code == 2
    assert text in found.line


@pytest.mark.parametrize("option", ["--format", "--tier", "--k", "--output-dir"])
def test_a_long_value_is_cut_in_the_line(command: Command, option: str) -> None:
    found = command("run", f"{option}={'x' * 5000}")
    assert found.code == 2
    assert len(found.line) < 500
    assert "x…" in found.line


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
    (tmp_path / "my.yaml").write_text(
        header + "method: {Speculate: {drafter: Oracle, model: target, verifier: Rejection}}\n"
    )
    found = run("--method", tmp_path / "my.yaml")
    assert found.code == 2
    assert "unknown part 'Oracle'" in found.line


@pytest.mark.usefixtures("unloadable")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("method: &a {Speculate: {drafter: *a, model: target, verifier: Rejection}}\n", "this value contains itself"),
        ("method: {Speculate: {drafter: NoDraft}}\nmethod: 1\n", "the key 'method' stands there twice"),
        ("method: [1]\nlossless: maybe\n", "lossless is true or false, not 'maybe'"),
        ("method: [1]\nsummary: [1]\n", "summary is a text, not '[1]'"),
    ],
)
def test_a_method_file_that_is_none_is_one_line(run: Command, tmp_path: Path, content: str, text: str) -> None:
    usual = {"summary": "s", "paper": "p", "lossless": "true"}
    header = "".join(f"{key}: {value}\n" for key, value in usual.items() if f"{key}:" not in content)
    (tmp_path / "my.yaml").write_text(header + content)
    found = run("--method", tmp_path / "my.yaml")
    assert found.code == 2
    assert text in found.line


@pytest.mark.usefixtures("unloadable")
def test_very_verbose_shows_the_traceback_before_the_line(run: Command) -> None:
    found = run("-vv", "--method", "nope")
    assert found.code == 2
    assert found.err.startswith("Traceback")
    assert found.err.splitlines()[-1].startswith("specbench: unknown method 'nope'")


@pytest.mark.parametrize(
    ("file", "content"), [("model.safetensors", b"\x00" * 99), ("config.json", b"{"), ("tokenizer.json", b"")]
)
def test_a_corrupt_checkpoint_is_one_line(run: Command, pair: Pair, tmp_path: Path, file: str, content: bytes) -> None:
    place = shutil.copytree(pair.target, tmp_path / "corrupt")
    (place / file).write_bytes(content)
    found = run("--target", place, "-q")
    assert found.code == 4
    assert str(place) in found.line


def test_a_panic_of_the_tokenizers_library_is_one_line(run: Command, pair: Pair, tmp_path: Path) -> None:
    place = shutil.copytree(pair.target, tmp_path / "slow")
    file = place / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "([w0-9 ]+)+$a"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps({**json.loads(file.read_text()), "pre_tokenizer": split}))
    found = run("--target", place, "--draft", place, "-q", "--dataset", prompts(tmp_path / "long.jsonl", 30))
    assert found.code == 4
    assert found.line.startswith("specbench: a file of a checkpoint is not usable: Onig: Regex search error: ")


def test_running_out_of_memory_while_loading_is_one_line(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **settings: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(loading, "load_model", full)
    found = run()
    assert found.code == 4
    assert "do not fit into the memory of cpu" in found.line
