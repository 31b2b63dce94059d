"""The Typer application: its commands, and how an error becomes one line and an exit code."""

import io
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Annotated, Any, NoReturn, cast

import typer

from specbench import __version__
from specbench.cli.help import Command, Commands, imported, page
from specbench.errors import (
    SMALLER,
    InterruptedRunError,
    SpecbenchError,
    UnusableModelError,
    UsageError,
    out_of_memory,
)
from specbench.wording import first_line, near, redact

LONG = re.compile(r"(?<!\w)'[^']{79,}'(?!\w)|\S{81,}")  # quoted text, and words
VALUE, PATH = 80, 400  # characters of it that are shown
WIDEST = 10_000  # terminal columns
GRACE = 1.0  # seconds within which a second signal counts as the same request: both often arrive together
INTERRUPTED = 130  # the exit code of shells for Ctrl-C
LEAST = 2 << 30  # bytes of address space; with less, libraries crash or hang while loading

app = typer.Typer(
    cls=Commands,
    help="""Does speculative decoding pay for this pair, this method and this K, on this hardware?

    specbench run

    specbench sweep-k --k 1-8

    specbench verdict latest

    specbench report latest
    """,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
PANELS: dict[str, tuple[str, ...]] = {  # commands, named like their functions
    "Measure": ("measuring.run", "measuring.sweep_k", "measuring.sweep", "measuring.recommend"),
    "Read what was measured": ("reading.verdict", "reading.report", "reading.compare", "reading.list_"),
    "Before a run": ("machine.check", "machine.methods", "reading.predict"),
    "Look closer": ("measuring.trace", "measuring.calibrate", "measuring.noise", "measuring.verify", "measuring.audit",
                    "reading.import_", "reading.profile"),
    "Find and train drafts": ("machine.drafts", "measuring.tree", "measuring.skip_layers", "training.design_draft",
                              "machine.new_method"),
    "Set up": ("machine.cache",),
}  # fmt: skip
GROUPS = {  # commands that have commands of their own: panel, text, and these
    "models": ("Before a run", "List the models that have a name, and make scale models.",
               ("machine.list_", "machine.grow")),
    "config": ("Set up", "Look at settings.", ("machine.show",)),
    "backend": ("Set up", "Install engines for --backend in environments of their own.", ("machine.install",)),
    "train": ("Find and train drafts", "Train drafts for any target, from its own answers or from text.",
              ("training.draft", "training.head", "training.boost")),
}  # fmt: skip


class Later(Command):
    """A command whose module is imported when it is called or its options are read, so that --help is fast."""

    def __init__(self, place: str, **words: Any) -> None:
        super().__init__(**words)
        self.place = place
        del self.params, self.callback

    def __getattr__(self, name: str) -> Any:
        if name not in ("params", "callback"):
            raise AttributeError(name)
        alone = typer.Typer(add_completion=False)
        alone.command()(imported(f"cli.{self.place}"))
        whole = typer.main.get_command(alone)
        self.params, self.callback = whole.params, whole.callback
        return getattr(self, name)


def first(context: typer.Context) -> None:
    """Without a command: the first one."""
    if context.invoked_subcommand is None:
        next(iter(cast(Any, context.command).commands.values())).callback.__wrapped__()


@cache
def functions_of(module: str) -> dict[str, CodeType]:
    """The compiled functions of a module of commands, which is not executed."""
    code = cast(Any, find_spec(f"{__package__}.{module}")).loader.get_code(f"{__package__}.{module}")
    return {one.co_name: one for one in code.co_consts if isinstance(one, CodeType)}


def add(places: tuple[str, ...], to: typer.Typer, panel: str | None = None) -> None:
    """Add commands, with their docstrings as texts."""
    for place in places:
        module, function = place.split(".")
        name, text = function.rstrip("_").replace("_", "-"), functions_of(module)[function].co_consts[0]
        to.command(name, cls=cast(Any, partial(Later, place)), help=text, rich_help_panel=panel)(lambda: None)


for panel, places in PANELS.items():
    add(places, app, panel)
for name, (panel, about, places) in GROUPS.items():
    lists = name in ("models", "config")  # without a command
    group = typer.Typer(help=about, callback=first, invoke_without_command=lists, no_args_is_help=not lists)
    app.add_typer(group, name=name, cls=Commands, rich_help_panel=panel)
    add(places, group)


@app.command(name="help", cls=Command, hidden=True)
def help_of(context: typer.Context, command: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Show the help of a command, with all its options; of `all`, every command.

    Examples:

    specbench help all

    specbench help train draft
    """
    assert context.parent is not None
    inside, found = context.parent, cast(Any, context.parent.command)
    words = command or []
    for word in words if words != ["all"] else []:
        known = getattr(found, "commands", {})
        if word not in known:
            raise UsageError(f"there is no command {' '.join(words)[:60]!r}{near(word, known)}: see specbench help all")
        found = known[word]
        inside = typer.Context(found, parent=inside, info_name=word, help_option_names=["-h", "--help"])
    typer.echo(page(found, inside, short=not words))


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"specbench {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before the command."""
    if sys.platform != "win32" and (limit := address_space()) is not None and limit < LEAST:
        raise UnusableModelError(
            f"out of memory before the start: this shell limits the address space to {limit >> 20} MiB, "
            f"and loading torch takes {LEAST >> 20} MiB: raise it (ulimit -v unlimited)"
        )


def address_space() -> int | None:
    """Bytes of address space that `ulimit -v` leaves this process; None if unlimited."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


# --- streams and signals ----------------------------------------------------------------------------------------------


class Lasting:
    """A text stream that hides credentials and drops output once its reader is gone (the error `gone`).

    Everything else goes to the wrapped stream.
    """

    def __init__(self, stream: Any, gone: type[OSError], discreet: bool = False) -> None:
        self._stream, self._gone, self._discreet = stream, gone, discreet

    def write(self, text: str) -> int:
        shown = redact(text) if self._discreet else text
        self._kept(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._kept(self._stream.flush)

    def _kept(self, work: Callable[[], object]) -> None:
        try:
            work()
        except self._gone:
            # Point the stream at os.devnull: its buffer is flushed when the process ends.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def streams() -> Iterator[None]:
    """Let readers of stdout and stderr close early (`| head`), and keep credentials out of stderr."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and not 0 < int(columns[:9]) <= WIDEST:
        del os.environ["COLUMNS"]  # a terminal of 0 columns would show nothing
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for terminals without α and file names that are not text
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out: Any = Lasting(sys.stdout or nowhere, BrokenPipeError)
        err: Any = Lasting(sys.stderr or nowhere, OSError, discreet=True)
        with redirect_stdout(out), redirect_stderr(err):
            yield


@dataclass
class Heard:
    """The first signal received; 0 if none was."""

    number: int = 0
    at: float = 0.0

    @property
    def what(self) -> str:
        """What ended the command, in a word for its last line."""
        return f"ended by {signal.Signals(self.number).name}" if self.number else "interrupted"

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt as for Ctrl-C, so that tables and the resume command are still printed."""
        if not self.number or time.monotonic() - self.at > GRACE:
            self.number, self.at = number, time.monotonic()
            raise KeyboardInterrupt


@contextmanager
def heeded() -> Iterator[Heard]:
    """Let SIGTERM and SIGHUP interrupt the block, unless the parent process has set them (nohup)."""
    heard, ours = Heard(), []
    if threading.current_thread() is threading.main_thread():  # handlers can only be set there
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, heard.interrupt)
    try:
        yield heard
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


# --- errors -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Entry point: a user error ends in one line on stderr and the exit code of its kind or signal."""
    with streams(), heeded() as heard:
        message, code = outcome(heard)
        end(message, 128 + heard.number if heard.number else code)


def outcome(heard: Heard) -> tuple[str, int]:
    """Run the command; returns the last line for stderr and the exit code."""
    try:
        # standalone, typer draws a box of five lines around a wrong option
        code = app(prog_name="specbench", standalone_mode=False) or 0
        sys.stdout.flush()
        return (heard.what if code == INTERRUPTED else ""), code
    except InterruptedRunError as error:
        return f"{heard.what}; {error}", error.exit_code
    except SpecbenchError as error:
        return str(error), error.exit_code
    except typer.TyperException as error:
        message = error.format_message().rstrip(".").replace("Value error, ", "")  # empty if typer has shown the help
        given = str(getattr(error, "option_name", ""))
        from specbench.settings import declared
        from specbench.spec import RunSpec

        one = declared(RunSpec).get(given.removeprefix("--").removeprefix("no-").replace("-", "_"))
        if one and one.setting.within:
            message = f"No such option: {given}. It is part of --{one.setting.within.replace('_', '-')}"
        return message and f"{message} (see --help)", error.exit_code
    except typer.Abort:
        return "aborted", SpecbenchError.exit_code
    except KeyboardInterrupt:  # raised outside of typer
        return heard.what, INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        return unforeseen(error)


def unforeseen(error: BaseException) -> tuple[str, int]:
    """Describe an error that no command expects: out of memory, an unusable file, or a bug."""
    if out_of_memory(error):
        return f"out of memory ({first_line(error)}): {SMALLER}", UnusableModelError.exit_code
    if type(error).__name__ == "PanicException":  # e.g. a tokenizer with patterns that do not end
        return f"a file of a checkpoint is not usable: {first_line(error)}", UnusableModelError.exit_code
    if isinstance(error, OSError):  # a path that cannot be looked up, a terminal that accepts no more output
        place = str(error.filename or "the output")[:300]
        return f"cannot use {place}: {error.strerror or error}", UsageError.exit_code
    typer.echo(redact(traceback.format_exc()), err=True, nl=False)  # for bug reports
    return "", SpecbenchError.exit_code


def _shortened(found: re.Match[str]) -> str:
    """Shorten a long word or quotation; a path keeps more, as it may be part of a command."""
    text, most = found[0], PATH if "/" in found[0] else VALUE
    return text if len(text) <= most else text[:most] + "…" + "'" * text.startswith("'")


def end(message: str, code: int) -> NoReturn:
    """Exit with one line on stderr, with control characters escaped and long quotations shortened."""
    if message:
        shown = LONG.sub(_shortened, redact(message))
        line = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in shown)
        typer.echo(f"specbench: {line.replace('##[', '## [')}", err=True)  # a CI log would execute ##[error]
    sys.exit(code)
