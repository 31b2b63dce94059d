"""A command in a process of its own with limits, forked from this one, and what is wrong with how it ended.

Forking spares each of them the seconds in which libraries are loaded. Knows processes and files; must not know what a
command was given.
"""

import atexit
import os
import re
import resource
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specbench.cli import app

DOCUMENTED = {0, 2, 3, 4, 5, 6, 7}  # 1 is a bug; the others are those of signals, which nobody sent
GIB = 1 << 30
SECRET, KEY = "hf_" + "S" * 24 + "QfUzZ", "sk-" + "K" * 24 + "QfUzZ"  # every case has the one, some have the other
MOST = 3 * GIB // 2  # bytes that a command on tiny models may hold at once, a third of them libraries
OWN = ("cwd/results", "cwd/plots/")  # what every command may write to
LINES = 5  # on stderr besides notes
TOLD = re.compile(r"note: |results: |.*: (ok|partial|skipped|error|nan|oom|mismatch)(,|$)|preparing ")


@dataclass(frozen=True)
class Limits:
    """Of one process: seconds of the clock, seconds of computing, bytes of memory beyond what it begins with."""

    seconds: float = 20
    computing: int = 20
    memory: int = 3 * GIB
    file: int = GIB // 4


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: its exit code, below 0 the signal that killed it; memory: the most bytes it held;
    made: files outside its results that it made, changed or deleted; unfinished: temporary files that it left;
    outlived: whether processes that it began went on; accepted: whether it took what it must refuse."""

    code: int
    out: str
    err: str
    seconds: float
    made: tuple[str, ...]
    leaked: tuple[str, ...]
    memory: int = 0
    unfinished: tuple[str, ...] = ()
    outlived: bool = False
    accepted: bool = False

    @property
    def wrong(self) -> list[str]:
        """What a user could complain about, by kind."""
        lines = [line for line in self.err.splitlines() if not TOLD.match(line)]
        last = [line for line in lines if line.startswith("specbench: ")]
        found = {
            "hang": self.code in (-9, -24),  # killed for the clock, or for what it computed
            "killed": self.code < 0 and self.code not in (-9, -24),
            "traceback": "Traceback (most recent call last)" in self.err + self.out,
            "exit code": self.code >= 0 and self.code not in DOCUMENTED,
            "no line": self.code > 0 and not last and "Usage:" not in self.out,
            "more than one line": len(last) > 1 or len(lines) > LINES,
            "not printable": any(not line.isprintable() for line in self.err.splitlines()),
            "file outside": bool(self.made),
            "secret": bool(self.leaked),
            "memory": self.memory > MOST,
            "unfinished file": bool(self.unfinished),
            "process left": self.outlived,
            "accepted": self.accepted,
        }
        return [kind for kind, so in found.items() if so]


def rooms(place: Path) -> tuple[Path, Path, Path]:
    """Where a process works, its home and its folder for temporary files."""
    return place / "cwd", place / "home", place / "tmp"


def listing(place: Path) -> dict[str, tuple[int, int]]:
    """Every file in the rooms of a process but its results, with size and time of change."""
    found = {}
    for room in rooms(place):
        for path in sorted(room.rglob("*")):
            name = path.relative_to(place).as_posix()
            if not name.startswith(OWN) and not path.is_dir():
                known = path.lstat()
                found[name] = (known.st_size, known.st_mtime_ns)
    return found


def unfinished(place: Path) -> set[str]:
    """Temporary files of writers in the rooms of a process."""
    return {str(path.relative_to(place)) for room in rooms(place) for path in room.rglob("*.tmp")}


Before = Callable[[], object]


def carried_out(
    arguments: Sequence[str], place: Path, limits: Limits, before: Before = lambda: None, bad: bool = False
) -> Ended:
    """Carry out a command in `place`/cwd and wait for its end; the process does `before` first. bad: it must refuse."""
    for room in rooms(place):
        room.mkdir(exist_ok=True)
    known, parts, began = listing(place), unfinished(place), time.monotonic()
    child = os.fork()
    if not child:
        act(arguments, place, limits, before)
    code, memory, outlived = wait_for(child, began + limits.seconds)
    seconds, after = time.monotonic() - began, listing(place)
    new = sorted(name for name in {**known, **after} if known.get(name) != after.get(name))
    made = [name for name in new if not asked_for(place, name, arguments)]
    left = sorted(unfinished(place) - parts) if code >= 0 else []
    out, err = ((place / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    took = bad and code == 0
    return Ended(code, out, err, seconds, tuple(made), leaks(place), memory, tuple(left), outlived, took)


def asked_for(place: Path, name: str, arguments: Sequence[str]) -> bool:
    """Whether a file, or the folder that it is in, was named by an argument."""
    file = place / name
    named = [place / "cwd" / word for word in arguments if word]  # of an absolute one nothing stands before it
    return any(file == one or one in file.parents for one in named)


def act(arguments: Sequence[str], place: Path, limits: Limits, before: Before) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        atexit._clear()  # what the parent does at its end
        confine(place, limits)
        before()
        sys.argv = ["specbench", *arguments]
        app.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # an interpreter waits for its threads as well
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def confine(place: Path, limits: Limits) -> None:
    """Give this process rooms, streams and limits of its own."""
    work, home, temporary = rooms(place)
    os.setsid()
    os.chdir(work)
    os.environ |= {"HOME": str(home), "TMPDIR": str(temporary), "HF_TOKEN": SECRET, "OMP_NUM_THREADS": "1"}
    tempfile.tempdir = None
    for number, name in enumerate((Path(os.devnull), place / "out", place / "err")):
        with name.open("wb" if number else "rb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for what, limit in (
        (resource.RLIMIT_AS, size + limits.memory),
        (resource.RLIMIT_CPU, limits.computing),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit + (what == resource.RLIMIT_CPU)))


def wait_for(child: int, until: float) -> tuple[int, int, bool]:
    """The exit code of a child, which is killed if it has not ended by then, the most bytes of memory that it held, and
    whether a process of its own goes on; that is killed as well."""
    try:
        while not (found := os.wait4(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(child, 9)
            time.sleep(0.003)
        killed = os.WIFSIGNALED(found[1])
        return os.waitstatus_to_exitcode(found[1]), found[2].ru_maxrss * 1024, not killed and not alone(child)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, 9)


def alone(group: int, seconds: float = 2.0) -> bool:
    """Whether no process of a group is left, or only for a moment."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def leaks(place: Path) -> tuple[str, ...]:
    """The files of a process that hold a secret that it was given."""
    every = [place / "out", place / "err", *(path for room in rooms(place) for path in room.rglob("*"))]
    small = (path for path in every if path.is_file() and path.stat().st_size < GIB // 16)
    known = re.compile(f"{SECRET}|{KEY}".encode())
    return tuple(str(path.relative_to(place)) for path in small if known.search(path.read_bytes()))
