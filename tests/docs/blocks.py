"""The fenced blocks of the README and of the pages in docs, and what the comment before each says of it."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = ("method", "grid", "config", "file")  # blocks that later ones of the page find as files
_MARK = re.compile(rf"<!-- (not run|quoted|drawing|{'|'.join(FILES)})(?:: | from )(\S.*) -->\s*")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the comment before it as (what it says, its value)."""

    page: Path
    line: int
    language: str
    text: str
    mark: tuple[str, str] = ("", "")

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The lines of a console block as words, without their comments."""
        return [words for line in self.text.splitlines() if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, except directives of Sphinx, in their order."""
    mark = ("", "")
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and not token.info.startswith("{"):
            assert token.map is not None
            yield Block(page, token.map[0] + 1, token.info.strip(), token.content, mark)
        found = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        mark = (found[1], found[2]) if found else ("", "")


def of(language: str) -> list[Block]:
    """All blocks in a language."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]
