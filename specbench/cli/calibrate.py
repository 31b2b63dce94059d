"""`specbench calibrate`: what verifying and drafting cost on this machine, measured without any data."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import options as o
from specbench.cli.parsing import parse_k_list
from specbench.errors import UsageError

LONGEST = 1_000_000  # tokens; no model has a longer context, and a list of digits without end is no number


def calibrate(
    target: o.Target = None,
    draft: o.Draft = None,
    target_revision: o.TargetRevision = None,
    draft_revision: o.DraftRevision = None,
    dtype: o.Dtype = None,
    draft_dtype: o.DraftDtype = None,
    device: o.Device = None,
    widths: Annotated[
        str, typer.Option(help="Tokens verified in one pass: 1-17, or 1,2,4, or 1-33+4.", rich_help_panel=o.MEASURE)
    ] = "1-17",
    contexts: Annotated[
        str, typer.Option(help="Lengths of the text before them.", rich_help_panel=o.MEASURE)
    ] = "128,512,1024",
    repeat: Annotated[int, typer.Option(min=1, help="How often everything is timed.", rich_help_panel=o.MEASURE)] = 15,
    seed: o.Seed = None,
    output_dir: o.OutputDir = None,
    format: o.Format = None,
    quiet: o.Quiet = False,
) -> None:
    """Measure target cost against tokens verified, and draft cost; say which K the theory would choose for which α."""
    pair = {"target": target, "draft": draft, "target_revision": target_revision, "draft_revision": draft_revision}
    settings = {**pair, "dtype": dtype, "draft_dtype": draft_dtype, "device": device, "seed": seed}
    chosen, lengths = parse_k_list(widths), parse_lengths(contexts)
    if chosen[0] < 1:
        raise UsageError(f"--widths {widths}: a pass is over 1 token or more")
    from specbench.jobs import calibrate
    from specbench.jobs.output import Output

    output = Output(format or "table", output_dir or Path("results"), quiet)
    calibrate.start({k: v for k, v in settings.items() if v is not None}, chosen, lengths, repeat, output)


def parse_lengths(text: str) -> list[int]:
    """Whole numbers from 1 on, joined by commas; ascending, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 8 and 0 < int(part) <= LONGEST for part in parts):
        raise UsageError(f"cannot read --contexts {text!r}: write lengths in tokens, such as 128,512,1024")
    return sorted({int(part) for part in parts})
