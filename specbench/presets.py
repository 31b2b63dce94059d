"""Presets: the settings of a published experiment, what of it they reproduce, and the numbers that were published.

Knows the files in configs/presets; must not know what settings mean or how anything is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import yaml_files
from specbench.errors import UsageError
from specbench.shipped import CONFIGS
from specbench.wording import near


@dataclass(frozen=True)
class Preset:
    """A published experiment. published: for each of its cells the settings that tell it from the others, and numbers
    by the columns of results.csv; `told` are the names of those settings."""

    name: str
    summary: str
    paper: str
    reproduces: str
    differs: str
    settings: Mapping[str, Any]
    published: Sequence[Mapping[str, Any]]

    @property
    def told(self) -> set[str]:
        return {name for line in self.published for name in line if name in self.settings}


def presets() -> dict[str, Path]:
    """The preset files that ship with specbench, by name."""
    return {path.stem: path for path in sorted((CONFIGS / "presets").glob("*.yaml"))}


def preset(name: str) -> Preset:
    """A preset by its name. UsageError for an unknown one."""
    known = presets()
    if name not in known:
        raise UsageError(f"unknown preset {name[:60]!r}{near(name, known)}: choose one of {', '.join(known)}")
    return Preset(name=name, **yaml_files.read_yaml(known[name]))
