"""The Typer application: its commands, and how an error becomes one line and an exit code."""

import sys
from typing import Annotated

import typer

from specbench import __version__
from specbench.cli import predict, run
from specbench.errors import SpecbenchError

INTERRUPTED = 130

app = typer.Typer(
    help="Does speculative decoding pay for this pair, this method and this K, on this hardware?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
app.command(name="run")(run.run)
app.command(name="predict")(predict.predict)


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
    try:
        app()
    except SpecbenchError as error:
        typer.echo(f"specbench: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("specbench: interrupted", err=True)
        sys.exit(INTERRUPTED)
