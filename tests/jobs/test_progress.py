"""What a user sees while a run goes on: a live panel on a terminal, plain lines elsewhere, nothing when quiet."""

import io
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from specbench.jobs.progress import Display
from specbench.measure.runner import measure
from specbench.results import machine
from specbench.results.cells import Cell, Observer
from specbench.results.samples import Sample
from specbench.spec import RunSpec
from tests.support.measured import Call, FakeBackend, cell, job, sample


class Notebook(Observer):
    """An observer that stands for the folder of a run; remembers what was on the screen when it was written to."""

    def __init__(self, screen: io.StringIO) -> None:
        self.screen, self.events = screen, list[tuple[str, str]]()

    def _note(self, event: str) -> None:
        self.events.append((event, self.screen.getvalue()))

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        self._note(f"begin {len(cells)} {prompts}")

    def preparing(self, spec: RunSpec | None) -> None:
        self._note(f"preparing {spec.key if spec else None}")

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        self._note(" ".join(sample.prompt for sample in next(iter(samples.values()))))

    def end(self, cell: Cell) -> None:
        self._note(cell.status)


class Stage:
    """A display on a screen of text, with a clock that only a test moves."""

    def __init__(
        self, terminal: bool = False, quiet: bool = False, width: int = 150, prompts: int | None = None
    ) -> None:
        self.screen, self.seconds = io.StringIO(), 0.0
        console = Console(file=self.screen, force_terminal=terminal, width=width, _environ={})
        self.display = Display(console, quiet, prompts, now=lambda: self.seconds)

    @property
    def text(self) -> str:
        return self.screen.getvalue()

    def turns(self, *cells: Cell, step: float = 1.0) -> None:
        """Every sample of the cells, one turn after the other."""
        for together in zip(*(c.samples for c in cells), strict=True):
            self.seconds += step
            self.display.turn({c.spec: [s] for c, s in zip(cells, together, strict=True)})


def begun(done: Cell, samples: Sequence[Sample] = ()) -> Cell:
    return Cell(done.spec, done.resolved, samples)


def played(stage: Stage, *cells: Cell, prompts: int | None = None, step: float = 1.0) -> Stage:
    """The cells of a group from begin to end."""
    with stage.display as display:
        display.begin([begun(one) for one in cells], prompts or len(cells[0].samples))
        stage.turns(*cells, step=step)
        for one in cells:
            display.end(one)
    return stage


def watched(quiet: bool = False, terminal: bool = False, width: int = 150, **changes: Any) -> Stage:
    """A cell of two samples from begin to end."""
    return played(Stage(terminal, quiet, width), cell(sample("p1"), sample("p2"), **changes))


def test_what_a_lost_worker_had_decoded_is_decoded_once_more() -> None:
    stage, done = Stage(terminal=True), cell(sample("p1"), sample("p2"), sample("p3"))
    with stage.display as display:
        display.begin([begun(done)], 3)
        stage.turns(replace(done, samples=done.samples[:2]))
        played(stage, done)
    assert "5/5" in stage.text


LINE = "code chain K=4: ok, 2 samples, α 0.50  100 → 154 tokens/s  1.54× …\n"


def test_a_terminal_shows_the_panel_which_is_wiped_away_and_the_table_says_what_it_showed() -> None:
    found = watched(terminal=True).text
    for part in ("warming up", "1/2", "code", "chain K=4", "0.50", "100 → 154", "1.54×"):
        assert part in found
    assert LINE.strip() not in found
    assert found.rstrip("\n").endswith(("\x1b[2K", "\x1b[?25h"))


def test_elsewhere_there_is_one_plain_line_per_cell_and_nothing_if_quiet_however_long() -> None:
    assert watched().text == LINE
    for terminal in (True, False):
        for step in (1, 100):
            stage = played(Stage(terminal, quiet=True), cell(sample("p1"), sample("p2")), step=step)
            assert stage.text == ""


def observed(terminal: bool) -> list[tuple[str, str]]:
    """What a notebook that stands before the display saw of two turns, and what was on the screen then."""
    stage = Stage(terminal)

    def answer(call: Call) -> Sequence[int]:
        stage.seconds += 1.0
        return (1, 2, 3)

    notebook, one = Notebook(stage.screen), job("p1", "p2")
    with stage.display as display:
        measure([one], FakeBackend(answer), [notebook, display])
    key, baseline = one.spec.key, one.spec.baseline.key
    events = ["begin 1 2", f"preparing {baseline}", f"preparing {key}", "preparing None", "p1", "p2", "ok"]
    assert [event for event, _ in notebook.events] == events
    return notebook.events


def test_everything_is_stored_before_it_is_drawn() -> None:
    assert {screen for _, screen in observed(terminal=False)} == {""}
    drawn = dict(observed(terminal=True))
    assert "warming up" not in drawn["begin 1 2"]
    assert "1/2" not in drawn["p1"]
    assert "1/2" in drawn["p2"]
    assert "2/2" not in drawn["p2"]


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, _environ={"NO_COLOR": "1"})
    with Display(console, quiet=False) as display:
        display.begin([begun(cell(sample("p1")))], 1)
    assert "chain K=4" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue()


def test_a_narrow_terminal_breaks_no_line() -> None:
    stage = Stage(terminal=True, width=60)
    cells = [cell(sample("p1"), sample("p2", (4, 4, 4)), k=k, dataset="jsonl:" + "x" * 90) for k in (1, 16)]
    with stage.display as display:
        display.begin([begun(c) for c in cells], 2)
        stage.turns(*cells)
        last = re.sub(r"\x1b\[[0-9;?]*[ml]", "", stage.text).split("\x1b[2K")[-1]
    assert all(len(line) <= 60 for line in last.splitlines())
    assert len(last.splitlines()) == 4  # the bar, the head, two cells
    assert "chain K=16" in last.splitlines()[-1]


def test_a_cell_without_samples_says_how_it_ended_and_of_a_pair_that_could_not_be_had_it_never_begins() -> None:
    assert played(Stage(), cell(status="oom"), prompts=2).text == "code chain K=4: oom, 0 samples\n"
    stage = Stage(terminal=True, prompts=4)
    with stage.display as display:
        display.end(cell(status="error"))
    assert "code chain K=4: error, 0 samples" in stage.text


def test_nothing_draws_beside_the_timed_loop_and_what_is_printed_on_stdout_stays_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage, before = Stage(terminal=True), set(threading.enumerate())
    with stage.display as display:
        display.begin([begun(cell(sample("p1")))], 1)
        assert set(threading.enumerate()) <= before
        print("data")
    assert capsys.readouterr().out == "data\n"
    assert "data" not in stage.text


def test_turns_of_a_small_model_are_not_all_drawn() -> None:
    stage = played(Stage(terminal=True), cell(*(sample(f"p{n}") for n in range(100))), step=0.01)
    assert 5 <= stage.text.count("tokens/s") <= 15


def test_long_work_without_a_terminal_gives_a_line_every_half_minute() -> None:
    cells = [cell(*(sample(f"p{n}") for n in range(7)), k=k) for k in (2, 4)]
    lines = played(Stage(prompts=10), *cells, prompts=10, step=20).text.splitlines()
    assert [line.split(":")[0] for line in lines[:-2]] == [
        "2 of 10 prompts, about 3 min left; code chain K=2",
        "4 of 10 prompts, about 2 min left; code chain K=2",
        "6 of 10 prompts, about 1 min left; code chain K=2",
    ]


@pytest.mark.parametrize(("tier", "said"), [("compile", ["preparing code chain K=2"]), ("eager", [])])
def test_making_ready_is_told_where_it_takes_long_and_never_reckoned_with(tier: str, said: list[str]) -> None:
    stage = Stage()
    done = cell(*(sample(f"p{n}") for n in range(2)), k=2, tier=tier)
    with stage.display as display:
        display.begin([begun(done)], 10)
        display.preparing(done.spec)
        stage.seconds += 600
        display.preparing(None)
        stage.turns(done, step=20)
    lines = stage.text.splitlines()
    assert lines[: len(said)] == said
    assert [line.split(";")[0] for line in lines[len(said) :]] == ["1 of 10 prompts, about 3 min left"]


def test_an_eager_arm_is_named_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    stage, done = Stage(), cell(sample("p1"), k=2)
    said = threading.Event()
    monkeypatch.setattr("specbench.jobs.progress.LONG", 0.0)
    with stage.display as display:
        monkeypatch.setattr(display, "_say", lambda line: (stage.screen.write(line), said.set()))
        display.preparing(done.spec)
        assert said.wait(60)
        display.preparing(None)
        assert stage.text == "preparing code chain K=2, with its warm-up"
        assert set(threading.enumerate()) <= before, "no thread is left when something is timed"


@pytest.mark.parametrize("terminal", [True, False])
def test_comparing_outputs_is_on_the_screen_and_elsewhere_a_line_once_it_takes_long(terminal: bool) -> None:
    stage = Stage(terminal)
    with stage.display as display:
        for done in range(1, 5):
            stage.seconds += 16.0
            display.comparing(done, 50)
    said = [line for line in stage.text.splitlines() if line.startswith("comparing outputs")]
    assert "comparing outputs: 3 of 50 texts that differ" in stage.text or not terminal
    assert terminal or said == [f"comparing outputs: {done} of 50 texts that differ" for done in (2, 4)]


def test_the_first_estimate_is_one_line_that_says_what_it_is_worth() -> None:
    stage = Stage()
    with stage.display as display:
        display.estimated(cell(sample("p1"), k=2).spec, 1.3127, 3)
    assert stage.text == "first estimate, code chain K=2: about 1.3× (3 prompts, not compiled yet: provisional)\n"


def test_a_terminal_names_the_arm_that_is_made_ready_and_shows_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before, drawn = set(threading.enumerate()), threading.Event()
    monkeypatch.setattr("specbench.jobs.progress.SECOND", 0.01)
    stage, done = Stage(terminal=True), cell(sample("p1"), k=2, tier="compile")
    with stage.display as display:
        draw = display._draw_clock
        monkeypatch.setattr(display, "_draw_clock", lambda *about: (draw(*about), drawn.set()))
        display.begin([begun(done)], 1)
        display.preparing(done.spec)
        assert "preparing chain K=2" in stage.text
        stage.seconds += 7
        assert drawn.wait(60)
        display.preparing(None)
        assert set(threading.enumerate()) <= before, "no thread is left when something is timed"
        stage.turns(done)
    assert re.search("preparing chain K=2, [07] s", stage.text)


CROWD = (
    "load 8.0 on 2 threads: other programs run (cc1plus ×6, python), "
    "so results will be PROVISIONAL; stop them, or go on"
)


def loaded(
    monkeypatch: pytest.MonkeyPatch, before: float, *loads: float | None, threads: int | None = 2, **options: Any
) -> list[str]:
    """The lines of a run on a machine with a load before the warm-up, and one before every turn."""
    monkeypatch.setattr(machine, "load_average", lambda: before)
    monkeypatch.setattr(machine, "running_besides", lambda: "cc1plus ×6, python")
    stage = Stage(prompts=len(loads), **options)
    done = cell(*(sample(f"p{n}", load=load) for n, load in enumerate(loads)), resolved={"threads": threads})
    with stage.display as display:
        display.begin([begun(done)], len(loads))
        display.preparing(done.spec.baseline)
        ahead = len(stage.text.splitlines())
        display.preparing(None)
        stage.turns(done)
    lines = [line for line in stage.text.splitlines() if "PROVISIONAL" in line]
    assert ahead == (before > 2.5 and threads is not None and not options)
    return lines


def test_other_programs_are_named_before_the_warm_up_or_when_they_begin_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert loaded(monkeypatch, 8.0, 8.0, 9.0) == loaded(monkeypatch, 2.0, 2.5, None, 8.0, 9.0) == [CROWD]
    assert loaded(monkeypatch, 2.5, 2.5) == loaded(monkeypatch, 8.0, 8.0, threads=None) == []
    assert loaded(monkeypatch, 8.0, 8.0, quiet=True) == []


def test_turns_that_a_continued_run_has_already_are_not_waited_for() -> None:
    stage = Stage(terminal=True, prompts=6)
    done = cell(*(sample(f"p{n}") for n in range(3)))
    with stage.display as display:
        display.begin([begun(done, done.samples)], 4)
        stage.turns(cell(sample("p4")))
    assert "1/3" in stage.text  # the fourth turn of this group, and two of the next
    assert "  4 " in stage.text  # samples of the cell


def test_a_group_that_ends_early_leaves_no_turns_behind() -> None:
    stage = played(Stage(terminal=True, prompts=6), cell(sample("p1")), prompts=4)
    played(stage, cell(sample("p1"), sample("p2"), dataset="articles"))
    assert "3/3" in stage.text


def test_a_cell_that_failed_before_its_first_sample_does_not_stop_the_lines_of_the_others() -> None:
    stage, good, bad = (
        Stage(prompts=2),
        cell(sample("p1"), sample("p2"), k=1),
        cell(k=2, status="oom", error="no memory"),
    )
    with stage.display:
        stage.display.begin([begun(good), begun(bad)], 2)
        stage.display.end(bad)
        stage.turns(good, step=40.0)
        stage.display.end(good)
    assert "1 of 2 prompts" in stage.text
    assert "code chain K=2: oom, 0 samples" in stage.text
