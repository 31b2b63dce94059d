"""Several processes, one per device, train one draft."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tinypair import prompts, save_pair

FEW = ("--max-new-tokens", "8", "--batch", "4", "--length", "32", "--hidden", "32", "--layers", "1", "--tokens", "200",
       "--evaluations", "2", "--device", "cpu", "--format", "json")  # fmt: skip
LAUNCHED = """
import sys
from specbench.cli.app import main
sys.argv[0] = "specbench"
main()
"""


@pytest.mark.slow
def test_two_processes_train_one_draft(tmp_path: Path) -> None:
    """As `accelerate launch` starts them: they share the rows of a pass, and the first of them writes and speaks."""
    pair = save_pair(tmp_path)
    data = prompts(tmp_path / "words.jsonl", *[3 + n % 6 for n in range(24)])
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)
    words = ("train", "draft", "--target", str(pair.target), "--data", data, *FEW)

    def launched(processes: int, rows: int, port: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        folder = tmp_path / f"by-{processes}"
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        command = [*launch, "--master-port", str(port), str(script), *words, "--rows", str(rows)]
        done = subprocess.run(
            [*command, "--output", str(folder)], capture_output=True, text=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (state,) = (folder / "checkpoints").glob("step-*/progress.json")
        return json.loads(done.stdout), json.loads(state.read_text())["curve"]

    both, curve = launched(2, 2, free_port())
    alone, other = launched(1, 4, free_port())
    assert [point["tokens"] for point in curve] == [point["tokens"] for point in other]
    assert both[0]["tokens"] == alone[0]["tokens"]
    assert curve[-1]["loss"] != curve[1]["loss"]


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])
