"""Several processes, one per device, train one draft."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.frontdoor import Command
from tests.support.tinypair import Pair, prompts

FEW = ("--max-new-tokens", "8", "--batch", "4", "--length", "32", "--hidden", "32", "--layers", "1", "--tokens", "200",
       "--evaluations", "2", "--device", "cpu", "--format", "json")  # fmt: skip


@pytest.mark.slow
def test_two_processes_train_one_draft(command: Command, pair: Pair, tmp_path: Path) -> None:
    """As `accelerate launch` starts them: they share the rows of a pass, and the first of them writes and speaks."""
    data = prompts(tmp_path / "words.jsonl", *[3 + n % 6 for n in range(24)])
    words = ("train", "draft", "--target", str(pair.target), "--data", data, *FEW)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = str(place.getsockname()[1])
    shared = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "specbench", *words, "--rows", "2", "--output", str(tmp_path / "both")],
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    alone = command(*words, "--rows", "4", "--output", "alone")
    (first, err), (second, _) = (process.communicate(timeout=300) for process in both)
    assert [process.returncode for process in both] == [0, 0], err
    assert second == ""
    assert json.loads(first)[0]["tokens"] == json.loads(alone.out)[0]["tokens"]
    curve, other = (curve_of(tmp_path / name) for name in ("both", "alone"))
    assert [point["tokens"] for point in curve] == [point["tokens"] for point in other]
    assert curve[-1]["loss"] != curve[1]["loss"]


def curve_of(folder: Path) -> list[dict[str, Any]]:
    (state,) = (folder / "checkpoints").glob("step-*/progress.json")
    return list(json.loads(state.read_text())["curve"])
