"""A wrapper that ends its program when the process that started it ends; it sees this as the end of standard input.

    python -I guard.py PROGRAM ARGUMENT …

It runs as a separate process and exits with the program's exit code. It imports nothing of specbench.
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
    os._exit(code)  # the thread may still be reading


def end_with_input(program: subprocess.Popen[bytes]) -> None:
    sys.stdin.read()
    program.kill()


if __name__ == "__main__":
    main()
