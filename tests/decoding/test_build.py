"""Method files: every one that ships is proven exact over toys, a wrong one is refused with what would be right."""

import re
from itertools import cycle, product
from pathlib import Path

import pytest
import yaml

from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Constant, Heuristic, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import HEADER, drafts_with, methods, needs, read_method, words
from specbench.decoding.methods import build
from specbench.decoding.proofs.exact import SIZES, affordable, method_error, table_models
from specbench.decoding.timing import Under, WallClock
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.errors import UsageError
from tests.support.cases import quick_or_slow
from tests.support.laws import EXACT, sequence_error
from tests.support.stateful_laws import SCHEDULES, history_error
from tests.support.toys import KINDS, Toy, random_pair

TARGET, DRAFT = (Toy(table) for table in random_pair(0, 3, 4))


SHIPPED = [(name, *size) for name in methods() for size in SIZES if affordable(name, *size)]


@pytest.mark.whole
@pytest.mark.parametrize("eos", [(), (1,)], ids=["endless", "eos"])
@pytest.mark.parametrize(("name", "vocab", "k"), quick_or_slow(SHIPPED, lambda name, vocab, k: (vocab, k) == (2, 2)))
def test_a_shipped_method_is_lossless_if_it_says_so(name: str, vocab: int, k: int, eos: tuple[int, ...]) -> None:
    """The proof that `specbench verify` runs."""
    models = table_models(name, 0, vocab)
    said = read_method(name)["lossless"]
    assert (method_error(name, vocab, k, eos) <= EXACT) == said == build(name, models, k).verifier.lossless


@pytest.mark.parametrize("name", methods())
def test_every_shipped_method_is_proven_exact_over_two_levels(name: str) -> None:
    assert affordable(name, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "eos"), zip(SCHEDULES.values(), cycle([(), (1,)])), ids=SCHEDULES)
@pytest.mark.parametrize("name", [name for name in methods() if "schedule" in words(name, "schedule")])
def test_a_shipped_method_stays_lossless_with_every_schedule(
    name: str, schedule: Schedule, eos: tuple[int, ...]
) -> None:
    errors = []
    for seed, (vocab, k, new) in [*product(range(len(KINDS)), [(2, 3, 5)]), (KINDS.index("mixed"), (3, 2, 4))]:
        models = table_models(name, seed, vocab, length=new + 2)
        method = build(name, models, k, schedule=schedule)
        errors.append(history_error(method, models["target"].table, new, [(0,), (1, 0)], eos))
    assert (max(errors) <= EXACT) == read_method(name)["lossless"]


def test_the_methods_with_a_schedule_are_those_that_draft_chains_from_a_model() -> None:
    with_one = {name for name in methods() if "schedule" in words(name, "schedule")}
    assert {"chain", "token-match"} <= with_one
    assert "baseline" not in with_one


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES.values() if s != Constant()], ids=repr)
def test_a_method_without_a_place_for_a_schedule_refuses_one(schedule: Schedule) -> None:
    assert build("baseline", {"target": TARGET}, 3, schedule=Constant()) == build("baseline", {"target": TARGET}, 3)
    with pytest.raises(UsageError, match=r"^baseline: .*--schedule constant") as caught:
        build("baseline", {"target": TARGET}, 3, schedule=schedule)
    assert "\n" not in str(caught.value)


def test_the_methods_of_this_version_ship() -> None:
    assert {"baseline", "chain", "token-match", "block"} <= set(methods())
    assert {"tree-top", "tree-iid", "tree-distinct", "traversal"} <= set(methods())
    assert {"sequoia", "tree-dynamic", "merge"} <= set(methods())
    assert {"prompt-lookup", "suffix-lookup", "maxgram", "jacobi", "lookahead", "recycling", "suffix"} <= set(methods())
    assert {"suffix-hybrid", "sam"} <= set(methods())
    assert {"early-exit", "early-exit-shared", "layer-skip", "layer-skip-demo"} <= set(methods())
    assert {"cascade", "cascade-vertical", "cascade-horizontal"} <= set(methods())
    assert {"triforce", "retrieval", "streaming", "typical", "lenience"} <= set(methods())


@pytest.mark.parametrize("name", methods())
def test_a_shipped_method_says_what_it_is(name: str) -> None:
    content = read_method(name)
    assert set(content) == HEADER
    assert content["paper"] != "unpublished"
    assert all(len(content[key]) > 10 for key in ("summary", "paper"))
    assert "target" in needs(name)


def test_files_become_objects() -> None:
    models = {"target": TARGET, "draft": DRAFT}
    assert build("baseline", models, 3) == Speculate(NoDraft(), TARGET, Rejection())
    assert build("chain", models, 3) == Speculate(ModelDrafter(DRAFT, 3), TARGET, Rejection())
    assert build("token-match", models, 5) == Speculate(ModelDrafter(DRAFT, 5), TARGET, TokenMatch())


def test_needs_are_the_models_of_a_file() -> None:
    assert needs("baseline") == {"target"}
    assert needs("chain") == {"target", "draft"}


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("chain", {"draft"}),
        ("early-exit", {"target[:25%]"}),
        ("triforce", {"target", "draft"}),
        ("prompt-lookup", set()),
        ("jacobi", set()),
        ("baseline", set()),
    ],
)
def test_a_method_drafts_with_the_models_of_its_drafter(name: str, models: set[str]) -> None:
    assert drafts_with(name) == models


def written(folder: Path, method: object) -> str:
    file = folder / "mine.yaml"
    header = {"summary": "a method of my own", "paper": "none", "lossless": True}
    file.write_text(yaml.safe_dump({**header, "method": method}))
    return str(file)


CHAIN = {"drafter": {"ModelDrafter": {"model": "draft", "k": "k"}}, "model": "target", "verifier": "Rejection"}


def test_drafters_of_one_method_have_schedules_of_their_own(tmp_path: Path) -> None:
    drafter = {"ModelDrafter": {"model": "draft", "k": "k", "schedule": "schedule"}}
    inner = {"Speculate": {**CHAIN, "drafter": drafter, "model": "draft"}}
    name, schedule = written(tmp_path, {"Speculate": {**CHAIN, "drafter": inner}}), Heuristic()
    built = [build(name, {"target": TARGET, "draft": DRAFT}, 2, schedule=schedule).drafter.drafter for _ in range(2)]
    assert built[0].schedule == built[1].schedule == schedule
    assert len({id(built[0].schedule), id(built[1].schedule), id(schedule)}) == 3


def test_a_file_of_ones_own_nests_and_shares_the_clock(tmp_path: Path) -> None:
    inner = {"Speculate": {**CHAIN, "model": "draft", "length": 2}}
    name, clock = written(tmp_path, {"Speculate": {**CHAIN, "drafter": inner}}), WallClock()
    method = build(name, {"target": TARGET, "draft": DRAFT}, 1, clock)
    assert method == Speculate(Speculate(ModelDrafter(DRAFT, 1), DRAFT, Rejection(), 2), TARGET, Rejection())
    assert method.clock is clock
    assert method.drafter.clock == Under(clock, "draft")
    assert method.drafter.drafter.clock == Under(Under(clock, "draft"), "draft")
    assert sequence_error(method, TARGET.table, 3) <= EXACT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"method: [1,", "not readable as YAML"),
        (b"\xff\xfe\x00", "not readable as YAML"),
        (b"- a list", "lacks summary and lossless and method or part: `specbench new-method NAME` writes"),
        (b"method: NoDraft", "lacks summary and lossless: "),
        (b"summary: mine\npaper: none\nmethod: NoDraft", "lacks lossless: "),
        (b"", "lacks summary and lossless and method or part"),
        (b"{summary: mine, losless: true, part: a}", "unknown key 'losless' (did you mean lossless?)"),
        (b"{summary: mine, colour: red}", "unknown key 'colour': the keys are summary, paper, lossless, and method"),
        (b"{summary: mine, lossless: true, part: a, method: b}", "has both method and part: part is a drafter"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        build(str(file), {"target": TARGET}, 4)
    message = str(caught.value)
    assert message.startswith(f"{file}")
    assert said in message
    assert "\n" not in message


def test_an_unknown_method_is_answered_with_the_known_ones() -> None:
    said = "unknown method 'chian' (did you mean chain?): choose one of baseline, block, boosted-merge, cascade"
    with pytest.raises(UsageError, match=re.escape(said)):
        build("chian", {"target": TARGET}, 4)
