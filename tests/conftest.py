"""Fixtures of the commands: a tiny pair on disk, and `specbench` called in this process as a user calls it."""

import gc
import os
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: networks this small gain nothing from a second

from specbench.cli import app
from specbench.measure import parsing
from specbench.wording import grouped
from tests.support.frontdoor import SHORT, Command, Outcome, last_given

# The same examples in every run, and no failure because a machine is slow or busy.
settings.register_profile("specbench", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("specbench")


MANY = 8  # cases of one test that every run takes
SLOW_UNTIL = "SPECBENCH_SLOW_TESTS_UNTIL"  # environment variable: seconds since 1970
ALWAYS = ("slow", "whole", "processor", "cuda")  # tests that say themselves which cases are for whom


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with many cases every run takes some, evenly spread; continuous integration takes the others, too."""
    quick = [item for item in items if not any(item.get_closest_marker(name) for name in ALWAYS)]
    for cases in grouped(quick, lambda item: item.nodeid.partition("[")[0]):
        taken = {round(place * (len(cases) - 1) / (MANY - 1)) for place in range(MANY)}
        for number, case in enumerate(cases):
            if len(cases) > MANY and number not in taken:
                case.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Continuous integration has a limit of time: on a slow machine it begins no more slow tests from then on."""
    if time.time() > float(os.environ.get(SLOW_UNTIL, "inf")) and item.get_closest_marker("slow"):
        pytest.skip(f"the time for slow tests is over ({SLOW_UNTIL})")


def pytest_collection_finish() -> None:
    """Set aside what lives as long as the process: every run ends with a full collection, which would walk it all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is compiled is kept for the tests alone: for all processes of a run, which else compile the same anew."""
    base = tmp_path_factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    os.environ["SPECBENCH_CACHE"] = str(kept)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kept / "specbench" / "machine")


@pytest.fixture
def made_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands read what `made_run` made as if it were the folder of a run."""
    from specbench.results import reading
    from tests.support.made_runs import MADE

    read = reading.read_run
    monkeypatch.setattr(reading, "read_run", lambda path: MADE[path] if path in MADE else read(path))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Nothing is compiled unless a test asks for it: `--tier auto`, the default of commands, would."""
    if "as_users_call_it" not in request.fixturenames:
        monkeypatch.setitem(parsing.USUAL, "tier", "eager")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what else this machine does: a run says so on stderr, and `compare` looks at it."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty figures: to draw them takes most of their time, and other tests look at them."""
    from specbench.show.report import figure

    empty = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    monkeypatch.setattr(
        figure, "write", lambda _, file, form: getattr(file, "write_bytes", getattr(file, "write", None))(empty)
    )


@pytest.fixture
def as_users_call_it() -> None:
    """Commands with all their defaults."""


@pytest.fixture(scope="session")
def pair(tmp_path_factory):  # type: ignore[no-untyped-def]
    from tests.support.tinypair import save_pair

    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session", autouse=True)
def _one_set_of_commands() -> None:
    """The options of all commands are built once, and not for every call: that takes longer than many a command."""
    typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture(scope="session", autouse=True)
def _no_power_cuts() -> None:
    """Nothing waits for a disk, which takes as long as a decode; tests of what is written when watch it themselves."""
    os.fsync = lambda file: None


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`specbench` with the given arguments, in an empty folder."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["specbench", *last_given(arguments)])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err, tmp_path)

    return call


@pytest.fixture
def run(command: Command, pair, tmp_path: Path) -> Command:  # type: ignore[no-untyped-def]
    """`specbench run` on the tiny pair and the first two of three short prompts, unless the arguments say otherwise."""
    from tests.support.tinypair import prompts

    def call(*arguments: object, data: str | None = None) -> Outcome:
        dataset = data or prompts(tmp_path / "words.jsonl", 4, 6, 5)
        return command("run", *pair.options, "--dataset", dataset, *SHORT, *arguments)

    return call
