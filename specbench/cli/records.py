"""Rows on stdout in the formats that other programs read; light, for commands that answer at once."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import typer

from specbench.bench.writing import write_rows

Format = Literal["table", "csv", "json", "jsonl", "md"]


def print_data(rows: Sequence[Mapping[str, Any]], output: Format) -> bool:
    """Print the rows as csv, json or jsonl; false where `output` is for readers, which is left to the caller."""
    if output == "csv":
        write_rows(sys.stdout, rows)
    elif output == "json":
        typer.echo(json.dumps(rows, indent=2))
    elif output == "jsonl":
        typer.echo("\n".join(map(json.dumps, rows)))
    return output in ("csv", "json", "jsonl")
