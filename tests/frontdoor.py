"""How a command of `specbench` ended when it was called as a user calls it."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORT = ("--limit", "2", "--max-new-tokens", "8", "--warmup", "0", "--k", "3")


@dataclass(frozen=True)
class Outcome:
    """The exit code, both streams, and what lies in the folder of the one run."""

    code: int
    out: str
    err: str
    cwd: Path

    @property
    def folder(self) -> Path:
        (folder,) = (self.cwd / "results").iterdir()
        return folder

    def table(self, name: str = "results.csv") -> list[dict[str, str]]:
        with (self.folder / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    def samples(self) -> list[dict[str, Any]]:
        """The samples in the journal."""
        return [line["sample"] for line in self.journal() if "sample" in line]

    @property
    def line(self) -> str:
        """The one line on stderr with which the command ended."""
        assert self.err.startswith("specbench: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Command = Callable[..., Outcome]
