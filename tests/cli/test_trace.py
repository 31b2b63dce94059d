"""A traced decode is the decode of production, and its tokens are what the verdicts say; and `specbench trace`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.rounds import NonFiniteError
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.measure.tracing import spelled, trace
from specbench.metrics import Trace
from specbench.models.checkpoints import description, names
from specbench.results.documents import TokenView, TracedRound, trace_from_json
from tests.support import toys
from tests.support.frontdoor import Command
from tests.support.tinypair import Pair

NEW = 9


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join("abcdefgh"[i] for i in ids)


def both(method: Speculate, seed: int, eos: tuple[int, ...] = ()) -> tuple[tuple[TracedRound, ...], Trace]:
    """The rounds of a trace, and the decode with the same seed."""
    to = {"new": NEW, "eos": eos, "device": toys.CPU}
    rounds = trace(method, toys.PROMPT, rng=seeded([seed], toys.CPU), tokenizer=Letters(), **to)  # type: ignore[arg-type]
    (decoded,) = decode(method, [toys.PROMPT], rng=seeded([seed], toys.CPU), **to)  # type: ignore[arg-type]
    return rounds, decoded


def kinds(done: TracedRound) -> list[str]:
    return [t.kind for t in done.tokens]


ends = pytest.mark.parametrize("eos", [pytest.param((), marks=pytest.mark.slow), (2,)])


# --- the same decode --------------------------------------------------------------------------------------------------


@ends
@pytest.mark.parametrize("name", toys.methods(3))
def test_a_trace_is_the_decode_of_the_same_seed_and_its_kinds_agree_with_the_counts(
    name: str, eos: tuple[int, ...]
) -> None:
    for seed in range(8):
        rounds, decoded = both(toys.methods(3)[name], seed, eos)
        assert TokenView("", {}, rounds).ids == decoded.tokens
        assert tuple(r.counts for r in rounds) == decoded.rounds
        for done in rounds:
            found, counts = kinds(done), done.counts
            assert found.count("accepted") == counts.accepted
            assert len([t for t in done.tokens if t.emitted]) == counts.emitted
            assert found.count("correction") + found.count("bonus") == counts.emitted - counts.accepted
            if name not in {"tree"}:
                assert found.count("rejected") == counts.tested - counts.accepted == found.count("correction")
                assert len(found) - (counts.emitted - counts.accepted) == counts.usable


def test_a_chain_in_its_order_with_its_texts_and_p_and_q_of_its_tables() -> None:
    p, q = toys.random_pair(0, 3, 4)
    for seed in range(30):
        known: list[int] = [*toys.PROMPT]
        for done in both(toys.chain(p, q, 3), seed)[0]:
            assert re.fullmatch("a*(ru*c|b)", "".join(k[0] for k in kinds(done)))
            branch = list(known)
            for token in done.tokens:
                before = known if token.kind == "correction" else branch
                row = toys.number_of(before, 3) % len(p)
                assert token.text == "abc"[token.id]
                assert token.p == float(p[row, token.id])
                assert token.q == (None if token.kind == "bonus" else float(q[row, token.id]))
                branch.append(token.id)
                known += [token.id] if token.emitted else []


def test_in_a_tree_the_siblings_before_the_accepted_one_were_rejected_and_those_behind_it_never_tested() -> None:
    p, q = toys.random_pair(0, 3, 3)
    method = Speculate(toys.Tree((toys.Toy(q),), (3,), "top"), toys.Toy(p), Rejection())
    found = {tuple(kinds(r)) for seed in range(60) for r in both(method, seed)[0] if r.counts.drafted}
    assert found == {
        ("accepted", "unused", "unused", "bonus"),
        ("rejected", "accepted", "unused", "bonus"),
        ("rejected", "rejected", "accepted", "bonus"),
    }  # three of three tokens are drafted: one of them is accepted


def test_nothing_behind_an_end_is_shown_as_emitted_and_of_a_point_mass_q_is_one() -> None:
    only = torch.tensor([[0.0, 0.0, 1.0]]).double()
    (done,), decoded = both(toys.chain(only, only, 3), 0, eos=(2,))
    assert decoded.tokens == (2,)
    assert kinds(done) == ["accepted", "unused", "unused"]
    p = torch.tensor([[0.5, 0.25, 0.25]]).double()
    method = Speculate(toys.Tree((toys.Toy(p),), (1,), "top"), toys.Toy(p), TokenMatch())
    found = {(t.kind, t.q) for seed in range(20) for r in both(method, seed)[0] for t in r.tokens}
    assert found == {("accepted", 1.0), ("rejected", 1.0), ("correction", 0.0), ("bonus", None)}, "zero replaced it"


def test_rows_that_are_no_law_end_the_trace() -> None:
    p, q = toys.random_pair(0, 3, 3)

    class Broken(toys.Toy):
        def probs(self, context: Any, tree: Any, refeed: int = 0) -> Any:
            context.finite[:] = False
            return super().probs(context, tree)

    with pytest.raises(NonFiniteError):
        both(Speculate(toys.chain(p, q, 2).drafter, Broken(p), Rejection()), 0)


# --- texts of tokens --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return description.load_tokenizer(names.resolve("demo", None))


@pytest.mark.parametrize("text", ["def f(x):\n    return '→ 🎉 日本'\n\n# café", " two  spaces", "a" * 50, "🎉" * 30])
def test_the_texts_of_tokens_make_up_the_text(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text).input_ids
    found = [spelled(tokenizer, ids[:i], token) for i, token in enumerate(ids)]
    assert "".join(t for t, _ in found) == text
    pending = b"".join(bytes.fromhex(part) for _, part in found)
    assert all(part == "" or byte >= 0x80 for _, part in found for byte in bytes.fromhex(part))
    assert bool(pending) == (not text.isascii())


def test_a_character_is_the_text_of_the_token_that_completes_it(tokenizer: Any) -> None:
    arrow = tokenizer("→").input_ids
    assert len(arrow) == 3
    assert [spelled(tokenizer, arrow[:i], arrow[i]) for i in range(3)] == [("", "E2"), ("", "86"), ("→", "")]
    assert spelled(tokenizer, arrow[:1], arrow[0]) == ("", "E2")  # the first byte again: a broken character


def test_byte_tokens_of_other_tokenizers_have_their_byte() -> None:
    class Bytes:
        def decode(self, ids: Any, **options: Any) -> str:
            return bytes(ids).decode(errors="replace")

        def convert_ids_to_tokens(self, token: int) -> str:
            return f"<0x{token:02X}>"

    assert [spelled(Bytes(), [0xE2, 0x86][:i], b) for i, b in enumerate([0xE2, 0x86, 0x92])] == [
        ("", "E2"), ("", "86"), ("→", ""),
    ]  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(command: Command, pair: Pair) -> Command:
    def call(*arguments: object) -> Any:
        return command("trace", *pair.options, "-k", 3, "--max-new-tokens", 8, *arguments)

    return call


@pytest.mark.processor
@pytest.mark.parametrize("law", [(), ("--temperature", "1.0", "--top-k", "20", "--seed", "3", "--ignore-eos")])
@pytest.mark.parametrize(
    "method", ["chain", *(pytest.param(m, marks=pytest.mark.slow) for m in ("token-match", "baseline"))]
)
def test_it_emits_what_a_run_emits(tiny: Command, run: Command, tmp_path: Path, law: Any, method: str) -> None:
    (tmp_path / "one.txt").write_text("w3 w1 w4\n")
    ran = run("--method", method, *law, data=f"text:{tmp_path / 'one.txt'}")
    traced = tiny("--prompt-file", tmp_path / "one.txt", "--method", method, *law, "--format", "json")
    assert (traced.code, traced.err) == (0, "")
    (sample,) = ran.samples()
    assert trace_from_json(traced.out).ids == sample.method.tokens
    assert tuple(r.counts for r in trace_from_json(traced.out).rounds) == sample.method.rounds


@pytest.mark.parametrize("schedule", ["heuristic", "confidence"])
def test_a_schedule_is_the_one_of_a_run(tiny: Command, run: Command, tmp_path: Path, schedule: str) -> None:
    (tmp_path / "one.txt").write_text("w3 w1 w4\n")
    ran = run("--schedule", schedule, data=f"text:{tmp_path / 'one.txt'}")
    view = trace_from_json(tiny("--prompt", "w3 w1 w4", "--schedule", schedule, "--format", "json").out)
    assert tuple(r.counts for r in view.rounds) == ran.samples()[0].method.rounds
    assert view.settings["schedule"] == schedule


def test_the_prompt_and_the_settings_are_told_and_k_auto_measures_its_costs_as_a_run_does(
    tiny: Command, pair: Pair
) -> None:
    view = trace_from_json(tiny("--prompt", "w3 w1", "--format", "json", "--temperature", "0.5", "--top-k", "9").out)
    expected = {"target": str(pair.target), "draft": str(pair.draft), "method": "chain", "K": 3}
    expected |= {"temperature": 0.5, "top-k": 9, "seed": 0, "dtype": "float32"}
    assert (view.prompt, view.settings) == ("w3 w1", expected)
    view = trace_from_json(tiny("--prompt", "w3 w1 w4", "-k", "auto", "--format", "json").out)
    assert (view.settings["K"], view.settings["schedule"]) == (12, "auto")


def test_the_text_of_a_pipe_has_marks_and_a_terminal_colours_unless_they_are_not_wanted(
    tiny: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tiny("--prompt", "w3 w1 w4").out
    assert "\x1b" not in found
    assert all(part in found for part in ("\nw3 w1 w4", "[-", "{+"))
    assert re.search(r"^   1 +\d/3  │", tiny("--prompt", "w3 w1 w4", "--rounds").out, re.MULTILINE)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[9;31m" in tiny("--prompt", "w3 w1 w4").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in tiny("--prompt", "w3 w1 w4").out


@pytest.mark.parametrize(("name", "begin"), [("a.json", "{"), ("a.HTML", "<!doctype html>"), ("a.txt", "target ")])
def test_the_end_of_the_name_of_a_file_says_what_is_written(
    tiny: Command, tmp_path: Path, name: str, begin: str
) -> None:
    found = tiny("--prompt", "w3 w1 w4", "--output", tmp_path / name)
    assert (found.code, found.out, found.err) == (0, "", "")
    assert (tmp_path / name).read_text().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_without_a_prompt_there_is_an_example_and_a_file_that_is_no_text_is_none(
    command: Command, tiny: Command, tmp_path: Path
) -> None:
    found = command("trace", "--max-new-tokens", 4, "--format", "json")
    assert json.loads(found.out)["prompt"].startswith("def mean(values):")
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe")
    assert "a.bin is not UTF-8 text" in tiny("--prompt-file", tmp_path / "a.bin").line
