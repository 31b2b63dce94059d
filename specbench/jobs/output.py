"""Where the results of a measuring command go, and in which format. It changes no number."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.errors import UsageError
from specbench.show import run_output
from specbench.show.fitting import sentence
from specbench.wording import clean, near


@dataclass(frozen=True)
class Output:
    """The options for the destination and format of results; they change no number."""

    style: str = "table"
    parent: Path = Path("results")
    quiet: bool = False
    verbose: int = 0
    explain: bool = False

    def __post_init__(self) -> None:
        if self.style not in run_output.FORMATS:
            hint = near(str(self.style), run_output.FORMATS)
            raise UsageError(f"unknown --format {self.style!r}{hint}: choose one of {', '.join(run_output.FORMATS)}")


def output_of(settings: dict[str, Any], given: Mapping[str, Any]) -> Output:
    """Remove the output options from the settings."""
    style, parent = settings.pop("format", "table"), settings.pop("output_dir", "results")
    if not isinstance(parent, str | Path):
        raise UsageError(f"--output-dir {parent!r} is not the name of a folder")
    if str(parent) != os.fsencode(parent).decode(errors="replace"):  # Parquet tables cannot have other names
        raise UsageError(f"--output-dir {str(parent)!r} is not UTF-8 text: choose another")
    return Output(style, Path(parent), given["quiet"], given.get("verbose", 0), given.get("explain", False))


def say(console: Console, lines: Iterable[str]) -> None:
    """Print plain lines without colours and control characters, wrapped at words on a terminal."""
    for line in lines:
        sentence(console, clean(line, 2000))
