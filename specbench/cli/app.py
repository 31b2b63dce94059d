"""The Typer application: its commands, and how an error becomes one line and an exit code."""

import io
import sys
import traceback
from contextlib import redirect_stderr
from typing import Annotated, NoReturn

import typer

from specbench import __version__
from specbench.cli import (
    calibrate,
    compare,
    methods,
    models,
    predict,
    report,
    run,
    selftest,
    skip_layers,
    sweep,
    trace,
    tree,
    verdict,
)
from specbench.cli.streams import Discreet
from specbench.errors import SpecbenchError, UsageError
from specbench.redact import redact

INTERRUPTED = 130

app = typer.Typer(
    help="Does speculative decoding pay for this pair, this method and this K, on this hardware?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
app.command(name="run")(run.run)
app.command(name="sweep-k")(sweep.sweep_k)
app.command(name="sweep")(sweep.sweep)
app.command(name="compare")(compare.compare)
app.command(name="report")(report.report)
app.command(name="trace")(trace.trace)
app.command(name="verdict")(verdict.verdict)
app.command(name="calibrate")(calibrate.calibrate)
app.command(name="skip-layers")(skip_layers.skip_layers)
app.command(name="tree")(tree.tree)
app.command(name="selftest")(selftest.selftest)
app.command(name="predict")(predict.predict)
app.command(name="methods")(methods.methods)
app.add_typer(models.models, name="models")


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


def main() -> None:
    """Entry point: what a user can cause ends in one line on stderr and the exit code of its kind."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no α, a file name that is no text
    with redirect_stderr(Discreet(sys.stderr)):
        carry_out()


def carry_out() -> NoReturn:
    """The command, and how it ended."""
    try:
        code = app(standalone_mode=False)  # else typer would draw a box of five lines around a wrong option
    except SpecbenchError as error:
        end(str(error), error.exit_code)
    except typer.TyperException as error:
        message = error.format_message().rstrip(".")  # empty where typer has shown the help instead
        end(message and f"{message} (see --help)", error.exit_code)
    except OSError as error:  # a path that cannot even be looked at, a terminal that takes no more
        end(f"cannot use {str(error.filename or 'the output')[:300]}: {error.strerror or error}", UsageError.exit_code)
    except typer.Abort:
        end("aborted", 1)
    except Exception:  # a bug: its traceback is for whoever mends it
        typer.echo(redact(traceback.format_exc()), err=True, nl=False)
        sys.exit(SpecbenchError.exit_code)
    if code == INTERRUPTED:
        end("interrupted", INTERRUPTED)
    sys.exit(code)


def end(message: str, code: int) -> NoReturn:
    """Leave with one line on stderr, whatever the message holds: no name of a file or model moves the cursor."""
    if message:
        line = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in redact(message))
        typer.echo(f"specbench: {line.replace('##[', '## [')}", err=True)  # the log of a CI job would obey ##[error]
    sys.exit(code)
