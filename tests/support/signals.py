"""Signals as a shell leaves them to a program that it starts, whatever the tests were started by.

A shell that starts something in the background makes it ignore Ctrl-C, and `nohup` a closed terminal.
"""

import signal
from collections.abc import Iterator
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
