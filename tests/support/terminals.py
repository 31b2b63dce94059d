"""A pseudo-terminal of a given width for tests: what a program leaves on it, and what is wrong with that.

The child is forked, so a picture costs milliseconds; rich asks the terminal for its size, as it does for a user.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import traceback
from collections import Counter
from collections.abc import Callable

from rich.cells import cell_len

COMMAND = "import sys; sys.argv[0] = 'specbench'; from specbench.cli.app import main; main()"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
FRAME = re.compile(r"[\u2500-\u257f]")
INTERVAL = re.compile(r"[0-9.]+ – [0-9.]+")


def on_terminal(width: int, work: Callable[[], object]) -> str:
    """What stands on a terminal of so many columns after `work`, in a child whose streams are all that terminal."""
    child, terminal = pty.fork()
    if not child:
        os._exit(alone(width, work))
    shown = b""
    while some := received(terminal):
        shown += some
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    text = CONTROL.sub("", shown.decode())
    assert status == 0, text
    return text


def alone(width: int, work: Callable[[], object]) -> int:
    """The life of the child; its exit code."""
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm"
    with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:  # pytest has its own
        try:
            work()
        except BaseException:
            traceback.print_exc()
            return 1
        return 0


def received(terminal: int) -> bytes:
    """The next bytes; none when the child has ended, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def specbench(*arguments: object) -> Callable[[], object]:
    """The command in a process of its own. Its environment is named: readline adds a size to the one it inherits."""
    call = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return lambda: os.execve(sys.executable, call, dict(os.environ))


def faults(text: str, width: int, whole: str) -> list[str]:
    """What is wrong with a picture of so many columns; `whole` is the one that has all the room it wants."""
    found = [f"wider than {width}: {line}" for line in text.split("\n") if cell_len(line) > width]
    found += [f"cut: {line}" for line in text.split("\n") if "…" in line and text.count("…") > whole.count("…")]
    found += [f"broken: {interval}" for interval in Counter(INTERVAL.findall(whole)) - Counter(INTERVAL.findall(text))]
    return found + [f"lost: {word}" for word in words(whole) - words(text) if not folded(word, text)]


def words(text: str) -> Counter[str]:
    return Counter(FRAME.sub(" ", text).split())


def folded(word: str, text: str) -> bool:
    """A word of a heading may be broken where it has a hyphen for it; an address may take two lines, if it is long."""
    found = words(text)
    halves = (word[:place] + "-" in found and word[place:] in found for place in range(1, len(word)))
    return any(halves) or (len(word) > 40 and word in "".join(text.split()))
