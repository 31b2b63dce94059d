"""`report.html`: the parts of a report as one file that needs no network and loads nothing.

One script of the package sorts and hides table lines; the page's policy allows only it, by its hash. Every
value in a template is stripped of control characters and escaped.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specbench import __version__
from specbench.errors import UsageError
from specbench.files import own_folder, replace_text, replacing
from specbench.results import folder, named_runs
from specbench.results.documents import AUDITED
from specbench.show import documents, token_view, verdict
from specbench.show.details import LEVEL_HEADER, level_lines, report_lines
from specbench.show.report import content, figure, questions
from specbench.show.report.content import (
    POINTS,
    AuditPart,
    CalibrationPart,
    RunPart,
    audit_part,
    calibration_part,
    compared,
    run_part,
    side_by_side,
)
from specbench.show.report.figure import Picture
from specbench.show.report.figures_why import steps_of
from specbench.show.table import unbroken
from specbench.show.text import pair_name
from specbench.wording import clean, first_line

FOLDER = "plots"

Part = RunPart | CalibrationPart | AuditPart


def write_report(
    paths: Sequence[Path],
    output: Path | None = None,
    *,
    png: bool = True,
    svg: bool = False,
    pdf: bool = False,
    note: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the report on folders of runs and calibrations, and its figures next to it; returns the file.

    Default: report.html in the first folder. png, svg, pdf: formats of the figure files. note: called with
    notes for the user. UsageError if a folder is not a run, or the file cannot be written.
    """
    parts = [part_of(path) for path in paths]
    for line in (line for part in parts if isinstance(part, RunPart) for line in part.edited):
        note(line)
    file = output or paths[0] / "report.html"
    album = Album()
    page = rendered(parts, album)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, page)
        for form in (form for form, wanted in {"png": png, "svg": svg, "pdf": pdf}.items() if wanted):
            for name, picture in album.pictures.items():
                with replacing(own_folder(file.parent / FOLDER) / f"{name}.{form}") as temporary:
                    figure.write(picture, temporary, form)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UsageError(f"cannot write {clean(file, 300)}: {reason}; choose another --output") from error
    return file


def part_of(path: Path) -> Part:
    if (path / AUDITED).is_file():
        return audit_part(path)
    return calibration_part(path) if (path / POINTS).is_file() else run_part(path)


CONTENTS: dict[str, Any] = {  # template variables besides the parts
    "lines_of": report_lines,
    "steps_of": steps_of,
    "level_labels": list(map(unbroken, LEVEL_HEADER)),
    "level_lines": lambda rows: level_lines(rows, [questions.label(row, rows) for row in rows], content.measured),
    "content": content,
    "documents": documents,
    "verdict": verdict,
    "columns": named_runs.column_names,
    "label": questions.label,
    "token_view": token_view.fragment,
}


class Album:
    """The figures of a page, each with a unique name for its file and its ids on the page."""

    def __init__(self) -> None:
        self.pictures: dict[str, Picture] = {}

    def add(self, picture: Picture, *places: str) -> Markup:
        """The figure as inline SVG; `places` (run, data set) make its name."""
        stem = "-".join([*(folder.slug(place) for place in places if place), picture.name])
        names = (stem if n == 1 else f"{stem}-{n}" for n in range(1, 10_000))
        name = next(name for name in names if name not in self.pictures)
        self.pictures[name] = picture
        return Markup(figure.svg(picture, f"f{len(self.pictures)}-"))


def rendered(parts: Sequence[Part], album: Album) -> str:
    """The page. Equal parts give equal bytes: nothing depends on when or where it was made."""
    runs = [part for part in parts if isinstance(part, RunPart)]
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            title=title(parts),
            audits=all(isinstance(part, AuditPart) for part in parts),
            parts=parts,
            side_by_side=side_by_side(runs),
            difference=compared(runs),
            several=len(parts) > 1,
            draw=album.add,
            version=__version__,
        )
    )


@cache
def environment() -> Environment:
    """Templates of the package, with autoescape, and `printable` applied to all values."""
    loader = PackageLoader("specbench", "assets/report")
    found = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=content.printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, script, glossary = (loader.get_source(found, name)[0] for name in ("report.css", "report.js", "glossary.yaml"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found.globals |= {**CONTENTS, "css": Markup(css + token_view.STYLE), "glossary": yaml.safe_load(glossary)}
    found.globals |= {"script": Markup(script), "script_hash": f"sha256-{digest}"}
    return found


def title(parts: Sequence[Part]) -> str:
    """The pairs of the page, the first few by name; else what it has."""
    pairs = list(dict.fromkeys(pair_name(row) for one in parts if isinstance(one, RunPart) for row in one.rows))
    other = "audit" if isinstance(parts[0], AuditPart) else "calibration"
    return ", ".join(pairs[:3]) + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "") or other
