"""The Typer application: its commands, and how an error becomes one line and an exit code."""

import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from specbench import __version__
from specbench.cli import (
    backend,
    cache,
    calibrate,
    check,
    compare,
    config,
    design_draft,
    methods,
    models,
    noise,
    predict,
    profile,
    report,
    run,
    runs,
    skip_layers,
    sweep,
    trace,
    train,
    tree,
    verdict,
    verify,
)
from specbench.cli.help import Command, Commands
from specbench.cli.signals import INTERRUPTED, Heard, heeded
from specbench.cli.streams import fit_columns, streams
from specbench.errors import (
    SMALLER,
    InterruptedRunError,
    SpecbenchError,
    UnusableModelError,
    UsageError,
    out_of_memory,
)
from specbench.redact import redact
from specbench.wording import first_line

LONG = re.compile(r"(?<!\w)'[^']{79,}'(?!\w)|\S{81,}")  # what is quoted, and words
VALUE, PATH = 80, 400  # characters of it that are shown
LEAST = 2 << 30  # bytes of address space; in less the libraries crash or wait for ever while they load

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
PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Measure": {"run": run.run, "sweep-k": sweep.sweep_k, "sweep": sweep.sweep},
    "Read what was measured": {
        "verdict": verdict.verdict, "report": report.report, "compare": compare.compare, "list": runs.runs,
        "profile": profile.profile_of,
    },
    "Before a run": {"check": check.check, "methods": methods.methods, "predict": predict.predict},
    "Look closer": {
        "trace": trace.trace, "calibrate": calibrate.calibrate, "noise": noise.noise, "verify": verify.verify,
        "cache": cache.cache,
    },
    "Find and train drafts": {
        "tree": tree.tree, "skip-layers": skip_layers.skip_layers, "design-draft": design_draft.design_draft,
    },
}  # fmt: skip
for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name=name, cls=Command, rich_help_panel=panel)(command)
app.add_typer(models.models, name="models", cls=Commands, rich_help_panel="Before a run")
app.add_typer(config.config, name="config", cls=Commands, rich_help_panel="Before a run")
app.add_typer(backend.backend, name="backend", cls=Commands, rich_help_panel="Before a run")
app.add_typer(train.train, name="train", cls=Commands, rich_help_panel="Find and train drafts")


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
    if sys.platform != "win32" and (limit := address_space()) < LEAST:
        raise UnusableModelError(
            f"out of memory before the start: this shell limits the address space to {limit >> 20} MiB, "
            f"and loading torch takes {LEAST >> 20} MiB: raise it (ulimit -v unlimited)"
        )


def address_space() -> float:
    """The bytes that `ulimit -v` leaves this process."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def main() -> None:
    """Entry point: what a user can cause ends in one line on stderr and the exit code of its kind."""
    fit_columns()
    with streams(), heeded() as heard:
        carry_out(heard)


def carry_out(heard: Heard) -> NoReturn:
    """The command, and how it ended; after a signal its exit code is that of the signal."""
    message, code = outcome(heard)
    end(message, heard.code if heard.number else code)


def outcome(heard: Heard) -> tuple[str, int]:
    """Carry out the command: the last line for stderr, and the exit code."""
    try:
        code = app(standalone_mode=False) or 0  # else typer would draw a box of five lines around a wrong option
        sys.stdout.flush()
        return (heard.what if code == INTERRUPTED else ""), code
    except InterruptedRunError as error:
        return f"{heard.what}; {error}", error.exit_code
    except SpecbenchError as error:
        return str(error), error.exit_code
    except typer.TyperException as error:
        message = (
            error.format_message().rstrip(".").replace("Value error, ", "")
        )  # empty where typer has shown the help instead
        return message and f"{message} (see --help)", error.exit_code
    except typer.Abort:
        return "aborted", SpecbenchError.exit_code
    except KeyboardInterrupt:  # where typer no longer sees it
        return heard.what, INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library written in Rust is no Exception
        return unforeseen(error)


def unforeseen(error: BaseException) -> tuple[str, int]:
    """An error that no command expects: memory that ran out, a file that cannot be used, or a bug."""
    if out_of_memory(error):
        return f"out of memory ({first_line(error)}): {SMALLER}", UnusableModelError.exit_code
    if type(error).__name__ == "PanicException":  # such as of a tokenizer whose patterns do not end
        return f"a file of a checkpoint is not usable: {first_line(error)}", UnusableModelError.exit_code
    if isinstance(error, OSError):  # a path that cannot even be looked at, a terminal that takes no more
        place = str(error.filename or "the output")[:300]
        return f"cannot use {place}: {error.strerror or error}", UsageError.exit_code
    typer.echo(redact(traceback.format_exc()), err=True, nl=False)  # for whoever mends it
    return "", SpecbenchError.exit_code


def _shortened(found: re.Match[str]) -> str:
    """The beginning of a long word or quotation; a path, which may be part of a command, is shown longer."""
    text, most = found[0], PATH if "/" in found[0] else VALUE
    return text if len(text) <= most else text[:most] + "…" + "'" * text.startswith("'")


def end(message: str, code: int) -> NoReturn:
    """Leave with one line on stderr, whatever the message holds: no name of a file or model moves the cursor, and what
    is wrong is not quoted at length."""
    if message:
        shown = LONG.sub(_shortened, redact(message))
        line = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in shown)
        typer.echo(f"specbench: {line.replace('##[', '## [')}", err=True)  # the log of a CI job would obey ##[error]
    sys.exit(code)
