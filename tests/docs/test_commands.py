"""Every command of the README and of the pages in docs: its options exist, and it runs, or the page says why not."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from specbench.cli.app import app
from specbench.errors import UsageError
from tests.docs.blocks import FILES, PAGES, ROOT, Block, blocks, of
from tests.support.frontdoor import Command

SHORT = ("--limit", "1", "--max-new-tokens", "4")
LESS_WORK = {  # what a command is given besides its options on the page, of which the last one counts
    "run": (*SHORT, "--warmup", "0"),
    "sweep-k": (*SHORT, "--warmup", "0", "--k", "1,2"),
    "sweep": (*SHORT, "--warmup", "0"),
    "tree": (*SHORT, "--nodes", "4", "--depth", "2", "--repeat", "1"),
    "skip-layers": ("--limit", "2", "--max-new-tokens", "4", "--evaluations", "20", "--cost", "share"),
    "noise": SHORT,
    "verify": ("--limit", "1", "--max-new-tokens", "24", "--tokens", "100"),
    "calibrate": ("--widths", "1,2", "--contexts", "16", "--repeat", "1"),
    "trace": ("--max-new-tokens", "8"),
}
MEASURES = ("run", "sweep-k")
CONSOLE = of("console")
GROUPS = ("backend", "config", "models", "train")  # commands that have commands of their own


def run_folder(word: str, folder: Path) -> Path:
    """What <run> stands for: the latest run of the page; <base> and <new>: the one that CI compares with."""
    runs = sorted((file.parent for file in folder.glob("results/*/results.csv")), key=lambda run: run.stat().st_mtime)
    if word.endswith("<run>") and runs:
        return runs[-1]
    return Path(shutil.copytree(ROOT / "results" / "baseline", folder / "baseline", dirs_exist_ok=True))


def arguments(words: list[str], folder: Path) -> list[str]:
    """A command of a page as it is called: placeholders replaced, with less work where that is not said."""
    name, *given = (str(run_folder(word, folder)) if word.endswith(">") else word for word in words[1:])
    tier = ("--tier", "eager") if name in MEASURES and "--tier" not in given else ()  # compiling takes half a minute
    whole = "--resume" in given or (name, *given)[:2] == ("verify", "--method")  # the proofs alone take no such options
    return [name, *given, *(() if whole else (*LESS_WORK.get(name, ()), *tier))]


def parse(words: list[str]) -> Any:
    """The command with its arguments read; raises what typer says of wrong ones. Nothing is carried out."""
    group, rest = typer.main.get_command(app), words[1:]
    context = group.make_context("specbench", list(rest))
    while rest and hasattr(context.command, "resolve_command"):
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    return context


def ours(block: Block) -> list[list[str]]:
    return [words for words in block.commands if words[0] == "specbench"]


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.where)
def test_commands_and_options_of_a_block_exist(block: Block) -> None:
    for words in ours(block):
        assert parse(words).command.name == (words[2] if words[1] in GROUPS and words[2:] else words[1])


def test_an_option_that_does_not_exist_would_be_seen() -> None:
    """The control of the test above."""
    with pytest.raises(typer.TyperException, match="No such option"):
        parse(["specbench", "run", "--lookahead", "4"])
    with pytest.raises(UsageError, match="no such command"):
        parse(["specbench", "measure"])


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.where)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.commands
    assert block.mark[0] == "not run" or ours(block) == block.commands, "only specbench itself is run from a page"


RUN = [
    pytest.param(page, id=page.name)
    for page in PAGES
    if any(block.language == "console" and block.mark[0] != "not run" for block in blocks(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page: Path, command: Command, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.mark[0] in FILES:
            (tmp_path / block.mark[1]).write_text(block.text, encoding="utf-8")
        if block.language == "console" and block.mark[0] != "not run":
            for words in block.commands:
                done = command(*arguments(words, tmp_path))
                assert done.code == 0, f"{block.where}: {' '.join(words)}\n{done.err}"
