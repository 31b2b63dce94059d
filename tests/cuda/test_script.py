"""The script of the first minutes on a GPU: a part that hangs or fails leaves what it has shown."""

import sys
from pathlib import Path

import pytest

from tests.benchmarks import gpu
from tests.benchmarks.gpu import Part, run

PLACES = ("simulated",)  # it needs no device
HANGS = "import time; print('test_x.py::test_y FAILED'); print('.' * 9000, flush=True); time.sleep(99)"


def shown(tmp_path: Path, code: str, left: float = 99) -> tuple[str, list[str]]:
    seen: list[str] = []
    return run(Part("a part", [sys.executable, "-c", code], 2), left, tmp_path / "log", seen.append), seen


def test_a_part_that_hangs_is_stopped_and_names_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "EVERY", 0.3)
    found, seen = shown(tmp_path, HANGS)
    assert "exit code none: it took too long" in found
    assert "test_x.py::test_y FAILED" in found, "before the end that is quoted"
    assert any("s so far" in text and "test_y FAILED" in text for text in seen), "while it runs"


def test_a_part_that_fails_quotes_its_end(tmp_path: Path) -> None:
    found, _ = shown(tmp_path, "raise SystemExit('no such device')")
    assert "exit code 1" in found
    assert "no such device" in found
    assert "no time left" in shown(tmp_path, "", left=3)[0]
