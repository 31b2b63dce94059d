"""What a user sees while a run goes on: live numbers on a terminal, one line per cell elsewhere, nothing when quiet."""

import io
import threading
from typing import Any

import pytest
from rich.console import Console

from specbench.bench.samples import Cell, Sample
from specbench.cli.progress import Watch, live_line
from specbench.spec import RunSpec
from tests.measured import baseline_trace, cell, sample


class Notebook:
    """Stands for the folder of a run; remembers what was on the screen when it was written to."""

    def __init__(self, screen: io.StringIO) -> None:
        self.screen, self.events = screen, list[tuple[str, str]]()

    def add(self, cell: str, sample: Sample) -> None:
        self.events.append((sample.prompt, self.screen.getvalue()))

    def end(self, cell: Cell) -> None:
        self.events.append((cell.status, self.screen.getvalue()))


def watched(quiet: bool = False, terminal: bool = False, **changes: Any) -> tuple[str, Notebook]:
    """Everything that reached the screen during a cell of two samples."""
    screen = io.StringIO()
    notebook = Notebook(screen)
    done = cell(sample("p1"), sample("p2"), **changes)
    with Watch(Console(file=screen, force_terminal=terminal, width=150), notebook, quiet) as watch:  # type: ignore[arg-type]
        watch.begin(done.spec, 2)
        for each in done.samples:
            watch.sample(done.spec, each)
        watch.end(done)
    return screen.getvalue(), notebook


def test_live_numbers_are_alpha_both_throughputs_and_the_speedup() -> None:
    assert live_line([sample()]) == "α 0.50  100 → 154 tokens/s  1.54×"


def test_a_run_without_a_draft_has_no_alpha() -> None:
    assert live_line([sample(method=baseline_trace(range(12)))]).startswith("α –  100 → 100 tokens/s")


def test_a_terminal_shows_the_bar_and_the_live_numbers() -> None:
    screen, _ = watched(terminal=True)
    assert "code chain K=4" in screen
    assert "1/2" in screen
    assert "α 0.50  100 → 154 tokens/s  1.54×" in screen


def test_elsewhere_there_is_one_plain_line_per_cell() -> None:
    assert watched()[0] == "code chain K=4: ok, 2 samples, α 0.50  100 → 154 tokens/s  1.54×\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    assert "code" not in watched(quiet=True, terminal=terminal)[0]


def test_everything_is_stored_before_it_is_drawn() -> None:
    _, notebook = watched()
    assert notebook.events == [("p1", ""), ("p2", ""), ("ok", "")]


@pytest.mark.parametrize("text", ["[/]", "\x1b[31mred", "\udcff", "a\nb"])
@pytest.mark.parametrize("terminal", [True, False])
def test_names_of_data_sets_command_no_terminal(text: str, terminal: bool) -> None:
    screen, _ = watched(terminal=terminal, dataset=text)
    assert "\x1b[31mred" not in screen
    assert text not in screen or text == "[/]"
    screen.encode()


def test_a_cell_without_samples_says_how_it_ended() -> None:
    screen = io.StringIO()
    failed = cell(status="oom")
    with Watch(Console(file=screen, width=150), Notebook(screen), quiet=False) as watch:  # type: ignore[arg-type]
        watch.begin(RunSpec(), 2)
        watch.end(failed)
    assert screen.getvalue() == "code chain K=4: oom, 0 samples\n"


def test_nothing_draws_beside_the_timed_loop() -> None:
    screen = io.StringIO()
    before = threading.active_count()
    with Watch(Console(file=screen, force_terminal=True, width=150), Notebook(screen), quiet=False) as watch:  # type: ignore[arg-type]
        watch.begin(cell(sample("p1")).spec, 1)
        assert threading.active_count() == before
