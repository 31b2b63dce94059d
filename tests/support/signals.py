"""Signals as a shell leaves them to a program that it starts, whatever the tests were started by.

A shell that starts something in the background makes it ignore Ctrl-C, and `nohup` a closed terminal.
"""

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

USUAL = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
MAIN = """
from tests.support.signals import reset
reset()
from specbench.cli.app import main
main()
"""  # of a process of its own


def reset() -> None:
    for number, handler in USUAL.items():
        signal.signal(number, handler)


@contextmanager
def as_a_shell_leaves_them() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in USUAL}
    reset()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def left_by_a_killed(command: Sequence[str]) -> str:
    """What comes on the streams of a program that was killed once it has said `busy`, until all of its processes have
    closed them; that takes a moment at most."""
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "busy\n"
    running.kill()
    began = time.monotonic()
    said, _ = running.communicate(timeout=60)
    assert time.monotonic() - began < 5
    return said
