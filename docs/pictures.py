"""The pictures of a terminal in the README and the guide, drawn by rich from the journal of a real run.

python docs/pictures.py results/smollm2
"""

import io
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from specbench.results.named_runs import short_name
from specbench.results.reading import Run, read_run
from specbench.show.run_output import Shown, print_run
from specbench.wording import text_in

STATIC = Path(__file__).parent / "_static"
WIDTH = 116  # columns: the longest command of these runs fits
ANSI = [(0, 0, 0), (200, 60, 60), (40, 140, 60), (160, 120, 20), (50, 100, 190), (150, 70, 160), (30, 130, 140)]
THEMES = {
    "light": TerminalTheme((255, 255, 255), (31, 35, 40), [*ANSI, (110, 119, 129)]),
    "dark": TerminalTheme((13, 17, 23), (230, 237, 243), [*ANSI, (139, 148, 158)]),
}
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich's own is fetched from the net


def main(folder: str) -> None:
    """Write the picture of a run in both themes."""
    for name, svg in pictures(Path(folder)):
        (STATIC / name).write_text(svg, encoding="utf-8")


def pictures(folder: Path) -> Sequence[tuple[str, str]]:
    """The name of every picture, and its SVG."""
    run = read_run(folder)
    return [(f"{folder.name}-{name}.svg", drawn(run, theme)) for name, theme in THEMES.items()]


def drawn(run: Run, theme: TerminalTheme) -> str:
    """What `specbench run` left on the terminal, with its command above."""
    command = text_in(run.description, "command")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False, markup=False,
                      color_system="standard", legacy_windows=False)  # fmt: skip
    console.print(Text(f"$ {shlex.join(shlex.split(command))}", "bold"))
    shown = Shown.of(run.cells, command, short_name(run.path), explain=False)
    print_run([cell.row() for cell in run.cells], "table", console, shown)
    svg = console.export_svg(title="specbench", theme=theme, unique_id="specbench")
    return FONT.sub("", svg).replace("Fira Code", "ui-monospace") + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
