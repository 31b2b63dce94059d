"""What a preset's paper reports beside what was measured here.

Knows presets and rows of results.csv; must not know how anything was measured. Two numbers side by side are no test:
models, machines and prompts differ, and the preset says how.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console

from specbench.presets import Preset
from specbench.show.cell_text import cell_text, one_line, short_dataset
from specbench.show.fitting import draw
from specbench.show.number_table import NumberTable
from specbench.wording import Row, number_in, text_in


def show_published(preset: Preset, rows: Sequence[Row], style: str, console: Console) -> None:
    """Print it below the tables of a run, for readers alone: other formats are the rows."""
    if style == "table":
        draw(console, published_table(preset, rows).drawn())
    elif style == "md":
        console.file.write("\n" + published_table(preset, rows).markdown())


def published_table(preset: Preset, rows: Sequence[Row]) -> NumberTable:
    """A line for every published number and every measured cell that it belongs to; without any, the words alone."""
    lines = [line for row in rows for line in _lines(preset, row)]
    words = (f"paper: {preset.paper}", f"reproduced: {preset.reproduces}", f"different: {preset.differs}")
    header = ("number", "of", "published", "measured") if lines else ()
    return NumberTable(f"preset {preset.name}", header, lines, left=2, keys=2, above=words)


def _lines(preset: Preset, row: Row) -> Iterator[tuple[str, str, str, str]]:
    for published in preset.published:
        if all(_same(published[name], row, name) for name in preset.told & set(published)):
            for name, number in published.items():
                if name not in preset.told:
                    yield name, _cell(preset, row), f"{number:g}", one_line(cell_text(row, name))


def _same(wanted: object, row: Row, name: str) -> bool:
    return number_in(row, name) == wanted if isinstance(wanted, int | float) else text_in(row, name) == wanted


def _cell(preset: Preset, row: Row) -> str:
    """What tells the cell from the others of its preset."""
    told = [f"{name} {text_in(row, name)}" for name in sorted(preset.told)]
    return one_line(", ".join([short_dataset(text_in(row, "dataset")), *told]))
