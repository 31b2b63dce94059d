"""A program that ends when whoever started it does, however that ended: it is told by the end of our standard input.

    python -I guard.py PROGRAM ARGUMENT …

Run as a process of its own, which ends as the program does. It imports nothing of specbench.
"""

import os
import subprocess
import sys
from threading import Thread


def main() -> None:
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    Thread(target=end_with_input, args=(program,), daemon=True).start()
    code = program.wait()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)  # the thread may be reading still


def end_with_input(program: subprocess.Popen[bytes]) -> None:
    sys.stdin.read()
    program.kill()


if __name__ == "__main__":
    main()
