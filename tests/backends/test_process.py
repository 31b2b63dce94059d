"""A process at the end of a pipe: what it answers, and the one line that everything that goes wrong costs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from specbench.backends.engines import guard
from specbench.backends.engines.process import Child, environment, reason
from specbench.errors import UnusableModelError

Start = Callable[[str], Child]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def started(code: str) -> Child:
        children.append(Child("engine", [sys.executable, "-I", "-c", f"import os, sys, time\n{code}"], {"MINE": "7"}))
        return children[-1]

    yield started
    for child in children:
        child.close()


def test_every_line_is_answered_by_a_line_and_it_ends_when_it_is_closed(start: Start) -> None:
    child = start("for line in sys.stdin: print(line.strip(), flush=True)")
    assert [child.ask({"n": n}, 60) for n in (1, 2)] == [{"n": 1}, {"n": 2}]
    child.close()
    assert child.process.returncode == 0


def test_it_has_the_variables_that_it_is_given_and_nothing_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = environment({"MINE": "7"})
    assert (found["MINE"], found["PATH"], "PYTHONPATH" in found) == ("7", os.environ["PATH"], False)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("print('{\"error\": \"ValueError: no model\"}')", "engine: ValueError: no model"),
        (
            "print('loading', flush=True); sys.stdin.read()",
            "engine: its process printed 'loading', which is not an answer",
        ),
        ("raise MemoryError('no room')", "engine: it ended with exit code 1 (MemoryError: no room)"),
        ("os.kill(os.getpid(), 9)", "engine: ended by SIGKILL (it logged nothing)"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_line(start: Start, code: str, line: str) -> None:
    with pytest.raises(UnusableModelError) as error:
        start(code).ask({}, 60)
    assert str(error.value) == line


def test_a_process_that_hangs_is_ended(start: Start) -> None:
    child = start("time.sleep(3600)")
    with pytest.raises(UnusableModelError, match=r"engine: silent for 0\.01 seconds, so it was terminated"):
        child.ask({}, 0.01)
    assert child.process.returncode == -9
    with pytest.raises(UnusableModelError, match="ended by SIGKILL"):
        child.ask({}, 60)


def test_a_program_that_is_not_there_is_one_line_and_of_a_log_the_last_error_is_the_reason() -> None:
    with pytest.raises(UnusableModelError, match="engine: cannot run /no/such/python: No such file"):
        Child("engine", ["/no/such/python"], {})
    assert reason("start\nValueError: a\nRuntimeError: b\n  note\n") == "RuntimeError: b"
    assert reason("one\ntwo\n") == "two"


@pytest.mark.parametrize(("code", "ended"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 11)", -11)])
def test_a_guard_ends_as_its_program_does(code: str, ended: int) -> None:
    assert guarded(code).wait(60) == ended


def test_a_guard_ends_its_program_when_nobody_is_left_who_wants_it() -> None:
    process = guarded("print(os.getpid(), flush=True); time.sleep(3600)")
    assert process.stdout is not None
    assert process.stdin is not None
    program = int(process.stdout.readline())
    process.stdin.close()
    assert process.wait(60) == -9
    process.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)


def guarded(code: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-I", "-c", f"import os, sys, time\n{code}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-I", guard.__file__, *program], **pipes)  # type: ignore[call-overload]
