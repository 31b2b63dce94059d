"""The README and the pages in docs beside the program: their links, names and columns, and the pages made from it."""

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from docs.pictures import pictures
from specbench.decoding.method_files import methods
from specbench.spec import RunSpec
from tests.docs.blocks import PAGES, ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PACKAGE = ROOT / "specbench"


def links(page: Path) -> Iterator[str]:
    """Where the links of a page go."""
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            if child.type == "link_open":
                yield str(child.attrs["href"])


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= 7168


def test_the_readme_begins_with_the_two_commands_that_set_it_up() -> None:
    install, tests = [line for line in read(README).splitlines() if line.startswith("python3 -m venv")]
    assert install.endswith("pip install -e . && specbench run")
    assert tests.endswith("pip install -e '.[dev]' && pytest -n auto")  # .ci/run looks for this line


@pytest.mark.parametrize(("run", "page"), [("smollm2", README), ("demo", DOCS / "quickstart.md")])
def test_a_picture_is_what_the_committed_run_looks_like(run: str, page: Path) -> None:
    drawn = dict(pictures(ROOT / "results" / run))
    assert {name: read(DOCS / "_static" / name) for name in drawn} == drawn
    assert all(f"_static/{name}" in read(page) for name in drawn)
    assert not re.search("(src|href|url).{0,3}http", "".join(drawn.values())), "nothing is fetched"


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_links_to_exist(page: Path) -> None:
    files = [link.partition("#")[0] for link in links(page) if "://" not in link]
    made = () if page == README else ("generated/",)  # these are in the built site alone, where Sphinx checks the links
    assert [file for file in files if file and not file.startswith(made) and not (page.parent / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:specbench|configs|results|tests|docs)/[\w./-]+)`", read(page))
    assert [path for path in named if not path.startswith(MADE) and not (ROOT / path).exists()] == []


MADE = ("docs/_build", "docs/generated")


def test_every_method_stands_in_the_table_of_methods() -> None:
    assert [name for name in methods() if f"`{name}`" not in read(DOCS / "methods.md")] == []


def test_every_method_of_the_table_of_results_is_shipped() -> None:
    named = re.findall(r"^\| `([a-z-]+)`", read(DOCS / "methods.md"), re.MULTILINE)
    assert set(named) <= set(methods())


def test_every_folder_of_the_package_stands_in_the_architecture() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert [name for name in folders if f"`{name}`" not in read(DOCS / "architecture.md")] == []


def test_every_exit_code_stands_in_the_page_on_runs() -> None:
    from specbench import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.SpecbenchError)}
    assert [code for code in codes if f"| {code} |" not in read(DOCS / "runs.md")] == []


def defined(file: Path) -> set[str]:
    """The functions, classes and methods of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(read(file))) if isinstance(node, kinds)}


def test_the_route_to_the_accept_step_is_at_most_five_files_that_have_what_is_to_be_read() -> None:
    steps = re.findall(r"^\| \d \| `(.+?)` \| (.+?) \|", read(DOCS / "route.md"), re.MULTILINE)
    assert 3 <= len(steps) <= 5
    for file, names in steps:
        assert set(re.findall(r"`(\w+)`", names)) <= defined(ROOT / file), file


# --- columns ----------------------------------------------------------------------------------------------------------


def glossary() -> set[str]:
    """The columns that the glossary of reports, and with it the page of columns, explains."""
    content = yaml.safe_load((PACKAGE / "assets" / "report" / "glossary.yaml").read_text(encoding="utf-8"))
    return set(re.findall(r"[a-z_0-9]+", " ".join(f"{names} {meaning}" for names, meaning in content.items())))


def columns() -> set[str]:
    """The numbers of results.csv: without the settings and what they resolved to."""
    with (ROOT / "results" / "baseline" / "results.csv").open(encoding="utf-8", newline="") as file:
        names = next(csv.reader(file))
    return set(names[names.index("prompts") :]) - set(RunSpec.model_fields)


def test_every_number_of_a_row_is_explained() -> None:
    unknown = {name for name in columns() if not name.startswith("acceptance_at_")} - glossary()
    assert unknown == set()


def test_every_column_that_the_numbers_explain_exists() -> None:
    rows = re.findall(r"^\| (`.*?) \|", read(DOCS / "numbers.md"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row)}
    known = glossary() | set(next(csv.reader((ROOT / "results/baseline/results.csv").open(encoding="utf-8"))))
    assert {name for name in named if not re.search(r"_\d$", name)} - {"term_"} - known == set()


# --- the map ----------------------------------------------------------------------------------------------------------


def first_sentence(file: Path) -> str:
    text = ast.get_docstring(ast.parse(read(file))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def test_the_first_line_of_every_module_says_what_it_knows() -> None:
    """The map of the files is made of these lines."""
    said = {str(file.relative_to(PACKAGE)): first_sentence(file) for file in PACKAGE.rglob("*.py")}
    assert {name: line for name, line in said.items() if not line.endswith((".", "?")) or len(line) > 240} == {}
