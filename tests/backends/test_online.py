"""Online speculative decoding as a user runs it: topics that change, what is printed, and a run that was cut off."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.backends.native import open_pair
from specbench.decoding.method_files import methods
from specbench.models.network.learning import Learning
from specbench.results import journal
from specbench.spec import RunSpec
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair

OFTEN = "every: 2"


@pytest.fixture
def quick(tmp_path: Path) -> str:
    """The shipped method with an update every two requests."""
    text = methods()["online"].read_text(encoding="utf-8")
    file = tmp_path / "quick.yaml"
    file.write_text(text.replace("every: 8", OFTEN).replace("rate: 0.0001", "rate: 0.01"))
    assert OFTEN in file.read_text()
    assert "rate: 0.01\n" in file.read_text()
    return str(file)


@pytest.fixture
def online(command: Command, pair: Pair, quick: str, tmp_path: Path) -> Command:
    """`specbench run` with it over three prompts of one topic, three of another, and three more of the first."""
    file = tmp_path / "topics.jsonl"
    firsts = (1, 1, 1, 20, 20, 20, 1, 1, 1)
    file.write_text("".join(json.dumps(line(*one)) + "\n" for one in enumerate(firsts)))
    given = ("--method", quick, "--dataset", f"jsonl:{file}", "--max-new-tokens", 12, "--k", 3, "--explain")

    def call(*arguments: object) -> Outcome:
        return command("run", *pair.options, *given, *arguments)

    return call


def line(number: int, first: int) -> dict[str, str]:
    """A prompt of 3 to 7 words from a first one on."""
    words = " ".join(f"w{first + number + i}" for i in range(3 + number % 5))
    return {"id": f"p{number}", "prompt": words, "category": "aaabbbccc"[number]}


def decoded(found: Outcome) -> list[Any]:
    """What was decoded, without the times."""
    return [(one.prompt, one.cluster, one.method.tokens, one.method.rounds) for one in found.samples()]


@pytest.mark.parametrize("turns", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_run_that_was_cut_off_goes_on_with_the_draft_that_it_had(
    online: Command, command: Command, turns: int, tmp_path: Path
) -> None:
    """Tokens and counts are those of the run that nothing had cut off; the draft has learned from all of them."""
    whole = online("--temperature", 1, "--warmup", 1)
    row = whole.row()
    assert (row["carries"], row["prompts"], row["draws"]) == ("Distilled", "9", "5")
    assert 0 < float(row["update_share"]) < 1
    assert float(row["speedup_elsewhere"]) > float(row["speedup"])
    assert [one["category"] for one in whole.table("samples.csv")] == [*"aaabbbccc"], "in the order of the file"
    assert "its interval is over 5 blocks of consecutive prompts" in " ".join(whole.out.split())
    unbroken, lines = decoded(whole), (whole.folder / journal.FILE).read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 9 + 1  # the cell begins, its prompts, it ends
    (whole.folder / journal.FILE).write_bytes(b"".join(lines[: 1 + turns]))
    (whole.folder / "results.csv").unlink()
    again = command("sweep", "--resume", whole.folder).ok()
    assert decoded(again) == unbroken
    kept = (whole.folder / journal.FILE).read_bytes().splitlines(keepends=True)
    assert kept[: 1 + turns] == lines[: 1 + turns], "nothing that was measured is measured again"
    assert len(kept) == len(lines)


@pytest.fixture
def loaded(pair: Pair, quick: str) -> tuple[RunSpec, Any]:
    spec = RunSpec(target=str(pair.target), draft=str(pair.draft), method=quick, temperature=1.0, max_new_tokens=12)
    backend = open_pair([spec])
    backend.load()
    return spec, backend


def test_every_preparation_begins_with_the_draft_as_it_was(loaded: tuple[RunSpec, Any]) -> None:
    spec, backend = loaded
    texts, weights = [[n, n + 1, n + 2] for n in range(6)], list(backend.modules["draft"].parameters())
    runs, before = [], [weight.detach().clone() for weight in weights]
    for _ in range(2):
        decode = backend.prepare(spec, 3)
        runs.append([decode([text], [seed])[0] for seed, text in enumerate(texts)])
    first, second = ([(one.tokens, one.rounds) for one in run] for run in runs)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))
    assert backend.warnings == ()


def test_updates_that_broke_the_draft_are_said_once(
    loaded: tuple[RunSpec, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Learning, "teach", lambda *rest: "its loss or gradient is not a number")
    spec, backend = loaded
    decode = backend.prepare(spec, 3)
    for seed in range(4):
        decode([[1, 2, 3]], [seed])
    assert backend.warnings == (
        "an update of the draft was undone: its loss or gradient is not a number; try a smaller rate",
    )


@pytest.mark.slow
def test_several_rows_learn_together(online: Command) -> None:
    row = online("--batch", 2, "--warmup", 0).row()
    assert row["lossless"] == "identical"
    assert float(row["update_share"]) > 0
