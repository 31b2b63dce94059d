"""A command in a process of its own with limits, forked from this one, and what is wrong with how it ended.

Forking spares each of them the seconds in which libraries are loaded. Knows processes and files; must not know what a
command was given.
"""

import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.cli import app

DOCUMENTED = {0, 2, 3, 4, 5, 6, 7}  # 1 is a bug; the others are those of signals, which nobody sent
GIB = 1 << 30
SECRET = "hf_" + "S" * 24 + "QfUzZ"
OWN = ("cwd/results", "cwd/plots/")  # what every command may write to
LINES = 5  # on stderr besides notes
TOLD = re.compile(r"note: |results: |unverified: |.*: (ok|partial|skipped|error|nan|oom|mismatch)(,|$)|preparing ")


@dataclass(frozen=True)
class Limits:
    """Of one process: seconds of the clock, seconds of computing, bytes of memory beyond what it begins with."""

    seconds: float = 20
    computing: int = 20
    memory: int = 6 * GIB
    file: int = GIB // 4


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: its exit code, below 0 the signal that killed it; made: files outside its results."""

    code: int
    out: str
    err: str
    seconds: float
    made: tuple[str, ...]
    leaked: tuple[str, ...]

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


def carried_out(arguments: Sequence[str], place: Path, limits: Limits) -> Ended:
    """Carry out a command in `place`/cwd and wait for its end."""
    for room in rooms(place):
        room.mkdir(exist_ok=True)
    before, began = listing(place), time.monotonic()
    child = os.fork()
    if not child:
        act(arguments, place, limits)
    code = wait_for(child, began + limits.seconds)
    seconds, after = time.monotonic() - began, listing(place)
    new = [name for name, known in after.items() if before.get(name) != known]
    made = [name for name in new if not asked_for(place, name, arguments)]
    out, err = ((place / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    return Ended(code, out, err, seconds, tuple(made), leaks(place))


def asked_for(place: Path, name: str, arguments: Sequence[str]) -> bool:
    """Whether a file, or the folder that it is in, was named by an argument."""
    file = place / name
    named = [place / "cwd" / word for word in arguments if word]  # of an absolute one nothing stands before it
    return any(file == one or one in file.parents for one in named)


def act(arguments: Sequence[str], place: Path, limits: Limits) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        confine(place, limits)
        sys.argv = ["specbench", *arguments]
        app.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
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


def wait_for(child: int, until: float) -> int:
    """The exit code of a child that is killed if it has not ended by then."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, 9)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.003)


def leaks(place: Path) -> tuple[str, ...]:
    """The files of a process that hold the secret that it was given."""
    every = [place / "out", place / "err", *(path for room in rooms(place) for path in room.rglob("*"))]
    small = (path for path in every if path.is_file() and path.stat().st_size < GIB // 16)
    return tuple(str(path.relative_to(place)) for path in small if SECRET.encode() in path.read_bytes())


def removed(place: Path) -> None:
    """Take the files of a case away."""
    shutil.rmtree(place, ignore_errors=True)
