"""`specbench backend`: engines that are installed beside specbench, in environments of their own."""

from dataclasses import replace
from typing import Annotated

import typer

from specbench.cli.help import Command
from specbench.cli.options import OWN, Given, options

backend = typer.Typer(help="Install engines for --backend in environments of their own.", no_args_is_help=True)

ENGINE = Annotated[str, typer.Argument(help="vllm or llama.cpp.")]
PACKAGE = Annotated[str | None, typer.Option(help="What pip is to install, with a version.", show_default=False)]


OVERWRITE = replace(OWN["overwrite"], panel=None, help="Replace an environment that is there already.")


@backend.command(name="install", cls=Command)
@options(..., OVERWRITE)
def install(given: Given, engine: ENGINE, package: PACKAGE = None) -> None:
    """Install an engine in an environment of its own, from the package index; it takes minutes and gigabytes.

    SPECBENCH_ENGINES in the environment names another folder for engines.

    Examples:

    specbench backend install vllm

    specbench backend install llama.cpp --overwrite
    """
    from specbench.jobs import engines

    folder = engines.install(engine, package, given["overwrite"], lambda line: typer.echo(line, err=True))
    typer.echo(folder)
