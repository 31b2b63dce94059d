"""Engines in processes of their own: a child that answers lines of JSON, and a server on a local port.

Their callers get every failure as one line: an error that it reports, its death, a timeout, or any other output.
"""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any

from specbench.backends.engines import guard
from specbench.errors import UnusableModelError
from specbench.wording import clean

PATIENCE = 10.0  # grace period in seconds, more than that of `guard`
TAIL = 1 << 16  # bytes at the end of its log that are searched for the cause of death
NO_CAUSE = re.compile(r"WARNING|See root cause above", re.IGNORECASE)  # lines that only speak of errors
GUARD = Path(guard.__file__)
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # they would lead another Python to our packages


class Child:
    """A process with a name for the user. It has its own session, so that its children end with it."""

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
        """Send a message and return the answer. UnusableModelError for an error, or without an answer in `seconds`."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # a dead process is reported below
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            self.close(0.0)
            raise UnusableModelError(f"{self.name}: silent for {seconds:g} seconds, so it was terminated") from None
        if line is None:
            raise UnusableModelError(f"{self.name}: {ending(self.process.wait())} ({reason(tail(self._log))})")
        return self._read(line)

    def close(self, patience: float = PATIENCE) -> None:
        """Terminate the process group after a grace period."""
        end(self.process, self._log, patience)

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
            raise UnusableModelError(f"{self.name}: its process printed {said!r}, which is not an answer") from None
        if "error" in found:
            raise UnusableModelError(f"{self.name}: {clean(found['error'], 300)}")
        return found


class Listening:
    """A server program on a local port, in a session of its own; it and its children end with this process."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start it, with `--port` after the command; `variables` is its whole environment."""
        self.name, self.port = name, free_port()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), *command, "--host", "127.0.0.1", "--port", str(self.port)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, env=variables, start_new_session=True,
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until it is ready. UnusableModelError if it ends before, or takes longer."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            if ready():
                return
            time.sleep(0.05)
        raise self.lost(f"not ready after {seconds:g} seconds")

    def lost(self, why: str) -> UnusableModelError:
        """End a server that does not answer; the error says in one line why."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # a crashed process may not have ended yet
        code = self.process.poll()
        said = tail(self._log)  # nothing, if another request has already noticed
        self.close()
        how = f"silent ({clean(why, 300)})" if code is None else ending(code)
        return UnusableModelError(f"{self.name}: {how} ({reason(said)}){kept(said)}")

    def close(self) -> None:
        """End it and its children."""
        end(self.process, self._log, PATIENCE)


def end(process: subprocess.Popen[bytes], log: IO[bytes], patience: float) -> None:
    """Close the input of a process, at which it or its guard ends it, and kill its group after a grace period."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    log.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def tail(log: IO[bytes]) -> str:
    """The end of a log; empty once it is closed."""
    if log.closed:
        return ""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - TAIL, 0))
    return log.read().decode(errors="replace")


def kept(log: str) -> str:
    """Keep the end of a log for the user; where it is, in words."""
    if not log.strip():
        return ""
    with tempfile.NamedTemporaryFile("w", prefix="specbench-", suffix=".log", delete=False) as file:
        file.write(log)
    return f": its log is kept in {file.name}"


def ending(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and `variables`, without what is meant for this Python alone."""
    return {name: value for name, value in os.environ.items() if name not in FOREIGN} | {**variables}


def reason(log: str) -> str:
    """The line of a log that best explains why a process ended: the last that names an error, else the last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"Error|error:", line) and not NO_CAUSE.search(line)]
    return clean((errors or lines or ["it logged nothing"])[-1], 300)
