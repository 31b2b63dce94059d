"""Bytes of models on their way: a bar in a terminal, a line elsewhere where it takes long, nothing if quiet."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.progress import Progress

from specbench.jobs.progress import AGAIN, SOON, Bytes, shown
from specbench.models.checkpoints.names import resolve
from specbench.models.checkpoints.weights import find
from tests.support.hub import serving, shipped, use

GB = 10**9


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_line_is_said_when_it_takes_long_and_then_seldom_and_every_model_has_its_own_seconds() -> None:
    clock, lines = Clock(), list[str]()
    told = Bytes(None, lines.append, clock)
    for size, clock.seconds in enumerate((0, SOON - 1, SOON, SOON + AGAIN - 1, SOON + AGAIN)):
        told("loading some/model", size * GB, 16 * GB)
    assert lines == ["loading some/model: 2.00 GB of 16.0 GB", "loading some/model: 4.00 GB of 16.0 GB"]
    clock, lines = Clock(), list[str]()
    told = Bytes(None, lines.append, clock)
    for name, clock.seconds, size in (("target", 0, 0), ("draft", SOON - 1, 0), ("draft", SOON + 1, GB)):
        told(f"loading {name}", size, GB)
    assert lines == []


def test_a_terminal_has_a_bar_with_the_bytes_and_is_not_redrawn_for_each() -> None:
    clock, bars = Clock(), list[RenderableType]()
    told = Bytes(bars.append, str, clock)
    for clock.seconds in (0.0, 0.01, 0.02, 1.0):
        told("fetching target", int(clock.seconds * GB), 2 * GB)
    assert len(bars) == 2
    console = Console(file=StringIO(), width=120)
    console.print(bars[-1])
    assert isinstance(console.file, StringIO)
    assert "1.0/2.0 GB" in console.file.getvalue()
    assert isinstance(bars[-1], Progress)


@pytest.mark.parametrize(("terminal", "quiet"), [(True, True), (False, True), (False, False)])
def test_nothing_is_drawn_without_a_terminal_or_if_quiet(terminal: bool, quiet: bool) -> None:
    screen = StringIO()
    with shown(Console(file=screen, force_terminal=terminal, quiet=quiet)) as told:
        told("loading target", 1, 2)
    assert screen.getvalue() == ""


def test_bytes_of_a_download_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    target, draft = shipped("llama-7b", "llama-68m")
    with serving(target, draft) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        find(resolve("llama-68m"), lambda *one: told.append(one))
    sizes = {name: len(data) for name, data in draft.files.items()}
    assert {verb for verb, *_ in told} == {"fetching"}
    assert sizes["model.safetensors"] <= told[-1][1] == told[-1][2] <= sum(sizes.values())
