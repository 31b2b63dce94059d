"""What users read is plain English of the field: words of the project's own language are refused in it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.cli.help import WIDEST
from tests.cli.test_help import commands, shown

ROOT = Path(__file__).parent.parent
WORDS = re.compile(
    r"\b(told|tells?|asked|asks|stands?|stood|lies|whereof|thereof|hereof|beside|(is|are) none|nobody|anew|apart|laws?"
    r"|of its own accord|no part of|(go|goes|gone|going) on with|next to (never|nothing)|of which|wanted|said"
    r"|reckon(s|ed|ing)?|as good as|parts? from)\b",
    re.IGNORECASE,
)
ALLOWED = re.compile(
    r"(\bstand-ins?\b|\blaws? of large numbers\b|tests[./]laws)", re.IGNORECASE
)  # terms, each written in full
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))]


def refused(text: str) -> list[str]:
    """The words with what surrounds them."""
    text = ALLOWED.sub("", " ".join(text.split()))
    return [text[max(found.start() - 40, 0) : found.end() + 40] for found in WORDS.finditer(text)]


def texts(code: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of the string constants with a blank, neither docstrings nor annotations."""
    skipped: set[int] = set()
    for node in (tree := list(ast.walk(ast.parse(code)))):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body) | ast.FunctionDef(body=body):
                match body[:1]:
                    case [ast.Expr(value=ast.Constant() as doc)]:
                        skipped.add(id(doc))
            case ast.arg(annotation=ast.Constant() as quoted) | ast.AnnAssign(annotation=ast.Constant() as quoted):
                skipped.add(id(quoted))
        if isinstance(returns := getattr(node, "returns", None), ast.Constant):
            skipped.add(id(returns))
    for node in tree:
        match node:
            case ast.Constant(value=str(text), lineno=line) if " " in text and id(node) not in skipped:
                yield line, text


@pytest.mark.parametrize("name", sorted(commands()))
def test_help_pages(name: str) -> None:
    assert refused("\n".join(shown(name, WIDEST))) == []


def test_texts_of_the_package() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {words}"
        for file in sorted((ROOT / "specbench").rglob("*.py"))
        for line, text in texts(file.read_text())
        for words in refused(text)
    ]
    assert found == []


def test_names_in_the_package() -> None:
    names = ("id", "arg", "attr", "name")  # of variables, parameters, attributes, and functions and classes
    found = [
        f"{file.relative_to(ROOT)}: {one}"
        for file in sorted((ROOT / "specbench").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        for one in (getattr(node, name, None) for name in names)
        if one in ("told", "Told", "asked", "Asked", "law", "Law")
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    assert refused((ROOT / page).read_text()) == []


def test_the_check_finds_a_word_and_knows_the_terms() -> None:
    code = 'def f(x: "Asked | None"):\n    """It is told."""\n    return f"{x} stands for it"'
    assert [text for _, text in texts(code)] == [" stands for it"]
    assert refused("a stand-in, by the law of large numbers") == []
    assert len(refused("it is as good as said\nin the law")) == 3
