"""`--resume RUN --limit N`: more prompts for a finished run; what was measured stays, only the new are decoded."""

import shutil
from pathlib import Path

import pytest

from specbench.results import journal
from tests.support.frontdoor import SHORT, Command, Outcome
from tests.support.tinypair import Pair, prompts

WORDS = (4, 6, 5, 7, 3, 6)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return prompts(tmp_path / "six.jsonl", *WORDS)


def outputs(found: Outcome) -> dict[str, tuple[int, ...]]:
    return {sample.prompt: tuple(sample.method.tokens) for sample in found.samples()}


def test_the_new_prompts_are_decoded_and_the_others_kept(run: Command, command: Command, data: str) -> None:
    small = run("--limit", 2, data=data)
    before = (small.folder / journal.FILE).read_bytes()
    grown = command("run", "--resume", small.folder.name[:16], "--limit", 5).ok()
    after = (grown.folder / journal.FILE).read_bytes()
    assert after.startswith(before), "what was measured stays as it was written"
    assert [next(iter(line)) for line in grown.journal()] == [
        "begin", "turn", "turn", "end", "grow", "turn", "turn", "turn", "end",
    ]  # fmt: skip
    (row,) = grown.table()
    assert (row["limit"], row["prompts"], row["status"], row["lossless"]) == ("5", "5", "ok", "identical")
    assert command("verdict", "latest").code == 0, "the tables are those of the journal"
    found, (key, sha) = outputs(grown), (row["cell"], row["prompts_sha256"])
    shutil.rmtree(grown.folder)
    fresh = run("--limit", 5, data=data)
    assert outputs(fresh) == found
    assert (fresh.table()[0]["cell"], fresh.table()[0]["prompts_sha256"]) == (key, sha), (
        "no other than a run of so many"
    )


@pytest.mark.slow
def test_it_can_be_killed_at_every_line_and_grown_again(run: Command, command: Command, data: str) -> None:
    small = run("--limit", 1, data=data)
    tables = (small.folder / "results.csv").read_bytes()
    command("run", "--resume", "latest", "--limit", 3)
    whole = (small.folder / journal.FILE).read_bytes().splitlines(keepends=True)
    for kept in range(4, len(whole)):
        (small.folder / journal.FILE).write_bytes(b"".join(whole[:kept]))
        (small.folder / "results.csv").write_bytes(
            tables
        )  # they are older than the journal, and their keys former ones
        again = command("run", "--resume", "latest").ok()
        assert [len(line.get("turn", ())) > 0 for line in again.journal()].count(True) == 3
        assert again.table()[0]["prompts"] == "3"
    more = command("run", "--resume", "latest", "--limit", 6)
    assert (more.code, more.table()[0]["prompts"]) == (0, "6"), more.err
    assert len({sample.turn for sample in more.samples()}) == 6


def test_every_cell_of_a_sweep_grows(command: Command, pair: Pair, data: str) -> None:
    small = command("sweep-k", *pair.options, "--dataset", data, *SHORT, "--k", "1,2", "--limit", 1)
    grown = command("sweep", "--resume", small.folder, "--limit", 2)
    assert [(row["k"], row["prompts"], row["limit"]) for row in grown.table()] == [("1", "2", "2"), ("2", "2", "2")]


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ((), "2", "--limit 2: results/{} has 2 already"),
        ((), "1", "--limit 1: results/{} has 2 already"),
        ((), "3 --executor process", "leave out --executor process"),
        (("--repeat", 2), "3", "no prompts can be added to results/{}: it repeats them"),
        (("--batch", 2), "3", "no prompts can be added to results/{}: it decodes prompts in batches"),
        (("--until-ci", 0.5), "3", "no prompts can be added to results/{}: --until-ci decides how many it takes"),
        (("--limit", 6), "9", "--limit 9: the data sets of results/{} have no more prompts that fit"),
    ],
)
def test_what_cannot_grow_is_refused_and_stays_as_it_was(
    options: tuple[object, ...], more: str, said: str, run: Command, command: Command, data: str
) -> None:
    small = run("--limit", 2, *options, data=data)
    before = (small.folder / journal.FILE).read_bytes()
    refused = command("run", "--resume", small.folder, "--limit", *more.split())
    assert refused.code == 2, refused.err
    assert said.format(small.folder.name) in refused.line.replace(f"{small.cwd}/", "")
    assert (small.folder / journal.FILE).read_bytes() == before
