"""What a run records of the machine."""

import os
from pathlib import Path

import torch

from specbench.results.machine import attention_kinds, running_besides


def test_the_kinds_of_attention_are_those_that_are_left_in() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        assert attention_kinds() == "flash, efficient, cudnn, math"
        torch.backends.cuda.enable_cudnn_sdp(False)
        assert attention_kinds() == "flash, efficient, math"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def process(proc: Path, pid: int, name: str, state: str, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 0 0\n")


def test_programs_that_run_besides_are_counted_and_those_of_this_run_are_not(tmp_path: Path) -> None:
    own = os.getpid()
    process(tmp_path, own, "specbench", "R", 1)
    process(tmp_path, own + 1, "engine", "R", own)
    process(tmp_path, own + 2, "worker", "R", own + 1)
    for number in range(6):
        process(tmp_path, own + 10 + number, "cc1plus", "R", 1)
    process(tmp_path, own + 20, "a) R \x1b[31m(x", "R", 1)
    process(tmp_path, own + 21, "asleep", "S", 1)
    process(tmp_path, own + 22, "loop", "R", own + 22)
    (tmp_path / "uptime").write_text("1")
    (tmp_path / str(own + 30)).mkdir()
    (tmp_path / str(own + 31)).mkdir()
    (tmp_path / str(own + 31) / "stat").write_text("nothing")
    first, *others = running_besides(tmp_path).split(", ")
    assert (first, set(others)) == ("cc1plus ×6", {"a) R \ufffd[31m(x", "loop"})
    assert running_besides(tmp_path / "nothing") == ""
