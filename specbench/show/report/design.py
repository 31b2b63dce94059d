"""The report part of a `specbench design-draft` folder: its shapes, findings, fits and figures.

The folder may have been edited: every value is text until it is parsed as a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.results.named_runs import read_json, read_table
from specbench.results.reading import DESCRIPTION
from specbench.show.checks import line, title
from specbench.show.report import figures_design
from specbench.show.report.content import facts, mappings
from specbench.show.report.figure import Picture
from specbench.wording import clean

SHAPES, DOCUMENT = "design.csv", "design.json"
COLUMNS = ("name", "budget", "layers", "hidden", "parameters", "latency_ms", "c")
FITS = {"latency_fit": "Latency, fitted", "acceptance_fit": "Acceptance, fitted"}
MOST = 100  # maximum number of sentences


@dataclass(frozen=True)
class DesignPart:
    """A design: its shapes, as titled lines for readers and as rows; the findings; the fits."""

    name: str
    facts: Mapping[str, str]
    title: str
    shapes: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    findings: Sequence[str]
    fits: Mapping[str, Mapping[str, Any]]
    pictures: Sequence[Picture]


def design_part(path: Path) -> DesignPart:
    """The report part of a `specbench design-draft` folder. UsageError if its shapes cannot be read."""
    shapes = read_table(path / SHAPES, COLUMNS, "design again")
    document, description = read_json(path / DOCUMENT), read_json(path / DESCRIPTION)
    said = document.get("findings")
    found = mappings([document.get(name) for name in FITS])
    return DesignPart(
        name=path.resolve().name,
        facts=facts(description),
        title=title(shapes),
        shapes=shapes,
        lines=[line(row) for row in shapes],
        findings=[clean(text, 500) for text in (said if isinstance(said, list) else [])[:MOST]],
        fits=dict(zip(FITS.values(), map(shown, found), strict=False)) if len(found) == len(FITS) else {},
        pictures=figures_design.figures(shapes),
    )


def shown(fit: Mapping[str, Any]) -> dict[str, str]:
    """The coefficients of a fit for readers."""
    return {name: f"{value:.4g}" if isinstance(value, int | float) else clean(value) for name, value in fit.items()}
