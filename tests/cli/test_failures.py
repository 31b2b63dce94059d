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

from specbench.decoding import methods
from specbench.decoding.randomness import Source
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.rejection import TokenMatch
from tests.support.frontdoor import SHORT, Command, Outcome
from tests.support.signals import MAIN
from tests.support.tinypair import Pair, change_weights, prompts

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
    found = run("-q").refused("No space left on device; choose another --output-dir")
    assert found.samples()[0].prompt in {"p0", "p1", "p2"}


class Careless(TokenMatch):
    """Emits the token beside the one that the target drew."""

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        verdict = super().judge(p, draft, rng)
        return replace(verdict, token=(verdict.token + 1) % p.shape[-1])


def test_a_method_that_changes_the_text_is_not_lossless(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.PARTS, "TokenMatch", Careless)
    found = run("-q", "--method", "token-match")
    assert (found.code, found.table()[0]["lossless"]) == (5, "MISMATCH")
    assert "differs from the baseline's beyond numerical noise" in found.line


@pytest.mark.slow
def test_an_interrupt_of_a_process_leaves_what_was_measured(pair: Pair, tmp_path: Path) -> None:
    options = (*SHORT, "--tier", "eager", "--repeat", "100000", "--dataset", prompts(tmp_path / "words.jsonl", 4, 6))
    arguments = [sys.executable, "-c", MAIN, "run", *pair.options, *options, "--output-dir", str(tmp_path / "results")]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        wait_for_lines(tmp_path / "results", 5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    found = Outcome(process.returncode, out, err, tmp_path)
    (row,) = found.table()
    assert (found.code, row["status"], row["prompts"]) == (130, "partial", "2")
    untold = len(found.samples()) - len(found.table("samples.csv"))
    assert untold in {0, 1}, "the interrupt may come after a line of the journal and before the runner has noted it"
    assert len(found.samples()) >= 4  # one of the five lines says that the cell has begun
    assert float(row["speedup"]) > 0
    assert err.splitlines()[-1] == f"specbench: interrupted; `specbench run --resume {found.folder}` continues it"
    assert "Traceback" not in err
    assert "partial: interrupted" in out


def wait_for_lines(results: Path, lines: int) -> None:
    for _ in range(1200):
        if any(path.read_text().count("\n") >= lines for path in results.glob("*/journal.jsonl")):
            return
        time.sleep(0.1)
    pytest.fail("nothing was measured in two minutes")


# --- bad input --------------------------------------------------------------------------------------------------------


def test_very_verbose_shows_the_traceback_before_the_line(run: Command) -> None:
    found = run("-vv", "--method", "nope")
    assert found.code == 2
    assert found.err.startswith("Traceback")
    assert found.err.splitlines()[-1].startswith("specbench: unknown method 'nope'")


def test_a_panic_of_the_tokenizers_library_is_one_line(run: Command, pair: Pair, tmp_path: Path) -> None:
    place = shutil.copytree(pair.target, tmp_path / "slow")
    file = place / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "([w0-9 ]+)+$a"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps({**json.loads(file.read_text()), "pre_tokenizer": split}))
    found = run("--target", place, "--draft", place, "-q", "--dataset", prompts(tmp_path / "long.jsonl", 30))
    assert found.code == 4
    assert found.line.startswith("specbench: a file of a checkpoint is not usable: Onig: Regex search error: ")
