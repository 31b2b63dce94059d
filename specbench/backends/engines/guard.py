"""A wrapper that ends its program when the process that started it ends; it sees this as the end of standard input.

    python -I guard.py PROGRAM ARGUMENT …

It runs as a separate process, in a session of its own, and exits with the program's exit code. It imports nothing of
specbench. The program's children end with it: SIGTERM goes to all of them, and SIGKILL a little later.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Event, Thread

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
OVER = Event()  # whether it is ending the program


def main() -> None:
    with suppress(PermissionError):  # whoever started it has made the session
        os.setsid()
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: None)  # its own signal to all
    waiting = Thread(target=end_with_input, args=(program,), daemon=True)
    waiting.start()
    code = program.wait()
    if OVER.is_set():
        waiting.join()
    if code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)  # the thread may still be reading


def end_with_input(program: subprocess.Popen[bytes]) -> None:
    sys.stdin.read()
    OVER.set()
    os.killpg(0, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        program.wait(GRACE)
    os.killpg(0, signal.SIGKILL)  # children that the program left, and this process


if __name__ == "__main__":
    main()
