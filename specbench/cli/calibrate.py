"""`specbench calibrate`: what verifying and drafting cost on this machine, measured without any data."""

from typing import Annotated

import typer

from specbench.cli.launch import settings_of
from specbench.cli.options import MEASURE, Given, options
from specbench.errors import UsageError
from specbench.jobs.parsing import parse_counts, parse_k_list

PAIR = ("target", "draft", "revisions", "precision", "device")

Widths = Annotated[
    str, typer.Option(help="Tokens verified in one pass: 1-17, or 1,2,4, or 1-33+4.", rich_help_panel=MEASURE)
]
Contexts = Annotated[str, typer.Option(help="Lengths of the text before them.", rich_help_panel=MEASURE)]
Repeat = Annotated[int, typer.Option(min=1, help="How often everything is timed.", rich_help_panel=MEASURE)]


@options(*PAIR, ..., "seed", "output_dir", "format", "quiet")
def calibrate(given: Given, widths: Widths = "1-17", contexts: Contexts = "128,512,1024", repeat: Repeat = 15) -> None:
    """Measure target cost against tokens verified, and draft cost; say which K the theory would choose for which α.

    Examples:

    specbench calibrate

    specbench calibrate --target llama-7b --draft llama-68m --contexts 512,2000
    """
    settings = settings_of(given)
    chosen, lengths = parse_k_list(widths), parse_counts(contexts, "--contexts", "128,512,1024")
    if chosen[0] < 1:
        raise UsageError(f"--widths {widths}: a pass is over 1 token or more")
    from specbench.jobs import calibrate
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    calibrate.start(settings, chosen, lengths, repeat, output)
