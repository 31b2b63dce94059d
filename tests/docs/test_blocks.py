"""Blocks that are no commands are what they claim to be: method files, grids, configurations, data, quotations."""

import json
from pathlib import Path

import pytest

from specbench.cli.options import read_config
from specbench.decoding.method_files import needs, read_method
from specbench.measure.parsing import with_ks
from tests.docs.blocks import FILES, PAGES, ROOT, Block, blocks, of

EVERY = [block for page in PAGES for block in blocks(page)]
WRITTEN = [block for block in EVERY if block.language in ("yaml", "json")]
LESSONS = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
QUOTATIONS = [block for block in of("text") if block.mark[0] != "drawing"]


@pytest.mark.parametrize("block", EVERY, ids=lambda block: block.where)
def test_a_block_has_a_language_that_a_test_knows(block: Block) -> None:
    assert block.language in {"console", "python", "yaml", "json", "text"}


@pytest.mark.parametrize("block", WRITTEN, ids=lambda block: block.where)
def test_a_block_is_what_it_claims_to_be(block: Block, tmp_path: Path) -> None:
    kind, name = block.mark
    assert kind in FILES, "say before the block what it is, such as <!-- method: mine.yaml -->"
    file = tmp_path / name
    file.write_text(block.text, encoding="utf-8")
    assert read(kind, file)


def read(kind: str, file: Path) -> object:
    """A block read as what it is; raises if it is not."""
    if kind == "method":
        assert read_method(str(file))["lossless"] in (True, False)
        return needs(str(file))
    if kind == "file":
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return cells(read_config(file))


def cells(settings: dict[str, object]) -> object:
    from specbench.measure import grid

    return grid.cells(with_ks(settings))


@pytest.mark.parametrize("block", QUOTATIONS, ids=lambda block: block.where)
def test_a_quotation_stands_in_the_file_that_it_names(block: Block) -> None:
    kind, source = block.mark
    assert kind == "quoted", "say before the block where it is from: <!-- quoted from FILE -->"
    assert set(block.text.splitlines()) <= {*(ROOT / source).read_text(encoding="utf-8").splitlines(), ""}


@pytest.mark.slow
@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_its_top_to_its_end(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "lesson"}
    for block in blocks(page):
        if block.language == "python":
            code = compile(block.text, block.where, "exec")
            if block.mark[0] != "not run":
                exec(code, names)
