"""A file is a chapter, a folder has few of them, and functions are short: the rule of docs/contributing.md, counted."""

import ast
from collections import Counter
from pathlib import Path
from statistics import median, quantiles

import specbench

PACKAGE = Path(specbench.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]
LINES = {path: path.read_text(encoding="utf-8").splitlines() for path in FILES}
MODULES, ALL, LONGEST, A_FOLDER = 230, 56_100, 420, 16
WIDE, SHARE = 110, 0.071  # characters of a long line, and the part of all lines that may be as long


def lengths() -> list[int]:
    """Lines of every function, without its decorators."""
    trees = (ast.parse("\n".join(lines)) for lines in LINES.values())
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [(node.end_lineno or 0) - node.lineno + 1 for node in functions]


def test_modules_are_few_and_none_is_long() -> None:
    assert len(FILES) <= MODULES
    assert sum(map(len, LINES.values())) <= ALL
    assert {str(path.relative_to(PACKAGE)): len(lines) for path, lines in LINES.items() if len(lines) > LONGEST} == {}


def test_a_folder_has_few_modules() -> None:
    found = Counter(path.parent for path in FILES)
    assert {str(folder): many for folder, many in found.items() if many > A_FOLDER} == {}


def test_functions_fit_on_a_screen() -> None:
    found = lengths()
    assert 5 <= median(found) <= 9
    assert quantiles(found, n=10)[-1] <= 20


def test_lines_were_not_joined_to_make_files_short() -> None:
    lines = [line for some in LINES.values() for line in some]
    assert sum(len(line) > WIDE for line in lines) <= SHARE * len(lines)
