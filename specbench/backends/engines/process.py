"""A process that answers one line of JSON with one line of JSON.

Whatever becomes of the process, its caller hears of it in one line: that
it says an error, dies, is silent for too long, or says something else.
"""

import json
import os
import queue
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO, Any

from specbench.errors import UnusableModelError
from specbench.wording import clean

PATIENCE = 10.0  # seconds that a process has to end by itself, once it was told
TAIL = 1 << 16  # bytes of what it logged in which the reason of its death is looked for
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # what would lead another Python to packages of this one


class Child:
    """A process, by what the user calls it. It is in a session of its own, so that its own children end with it."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._said: queue.Queue[bytes | None] = queue.Queue()
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                env=environment(variables), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._log.close()
            raise UnusableModelError(f"{name}: cannot run {clean(command[0])}: {error.strerror}") from error
        Thread(target=self._listen, daemon=True).start()

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """What it answers. UnusableModelError where that is an error, or there is no answer within so many seconds."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # a process that has died says so below
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            self.close(0.0)
            raise UnusableModelError(f"{self.name}: silent for {seconds:g} seconds, so it was ended") from None
        if line is None:
            raise UnusableModelError(f"{self.name}: {self._death()}")
        return self._read(line)

    def close(self, patience: float = PATIENCE) -> None:
        """End it and all that it started; it has so many seconds to end by itself."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put(None)

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            found = dict(json.loads(line))
        except (ValueError, TypeError):
            said = clean(line.decode(errors="replace").strip())
            raise UnusableModelError(f"{self.name}: its process said {said!r}, which is no answer") from None
        if "error" in found:
            raise UnusableModelError(f"{self.name}: {clean(found['error'], 300)}")
        return found

    def _death(self) -> str:
        return f"{ending(self.process.wait())} ({reason(self._logged())})"

    def _logged(self) -> str:
        if self._log.closed:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - TAIL, 0))
        return self._log.read().decode(errors="replace")


def ending(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process and some others, without what is meant for this Python alone."""
    return {name: value for name, value in os.environ.items() if name not in FOREIGN} | {**variables}


def reason(log: str) -> str:
    """The line of a log that says best why a process ended: the last that names an error, else the last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error:" in line]
    return clean((errors or lines or ["it logged nothing"])[-1], 300)
