"""Tables as Markdown. Knows nothing of what they say; names in them have been escaped by whoever puts them there."""

from collections.abc import Sequence

RULES = {"l": "---", "r": "---:"}


def table(header: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> list[str]:
    """The lines of a table; `align` has one letter for each column, l or r."""
    rule = "|" + "".join(f"{RULES[letter]}|" for letter in align)
    return [table_line(header), rule, *map(table_line, lines)]


def table_line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def paragraphs(texts: Sequence[str]) -> list[str]:
    """The texts as lines, each with a blank one after it."""
    return [line for text in texts for line in (text, "")]
