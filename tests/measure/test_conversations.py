"""Later turns of conversations: on the baseline's answers, after one another, one draw, whole after a cut. No model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.data.forms import Applied
from specbench.data.prompts import Prompt, PromptSet
from specbench.measure.group import Job
from specbench.measure.runner import measure
from specbench.results.cells import Cell
from specbench.spec import RunSpec
from tests.support.chats import Spelled
from tests.support.faked_runs import failing, flat_scores, run
from tests.support.measured import RESOLVED, Call, FakeBackend, Witness, no_scores

APPLIED = Applied("own", ">")


def conversations(*turns: int, most: int = 1000) -> PromptSet:
    """Conversations of so many turns, called a, b, c …"""
    prompts = []
    for name, count in zip("abcdefghijklmnopqrstuvwxyz" * 4, turns, strict=False):
        first, *later = [f"{name}{number}" for number in range(1, count + 1)]
        known = {prompt.id for prompt in prompts}
        ids = tuple(APPLIED.ids(Spelled(), [first]))
        prompts.append(Prompt(name + "+" * (name in known) * len(prompts), "all", first, ids, tuple(later), most=most))
    return PromptSet("talk", tuple(prompts), len(prompts), {}, "0" * 64, None, "turns", APPLIED, True)


def talk(*turns: int, most: int = 1000, **changes: Any) -> Job:
    spec = RunSpec(target="big", draft="small", **{"warmup": 0, **changes})
    return Job(spec, conversations(*turns, most=most), dict(RESOLVED))


def said(call: Call) -> str:
    return "".join(map(chr, call.prompt))


def answer(call: Call) -> Sequence[int]:
    """The baseline says B, methods say M, as often as there are turns."""
    return [ord("B" if call.arm == "baseline" else "M")] * (1 + said(call).count("[u]"))


def taken(cell: Cell) -> list[tuple[object, ...]]:
    return [(s.prompt, s.conversation, s.repeat, s.turn, s.order, s.baseline.tokens) for s in cell.samples]


def test_later_turns_go_on_from_the_baselines_answers_for_all_arms() -> None:
    jobs = [talk(3, 1, temperature=1.0, k=k) for k in (1, 2)]
    backend, witness, cells = run(*jobs, answer=answer)
    prompts = [said(call) for call in backend.calls]
    first, second = ">[u]a1[a]", ">[u]a1[a]BB[u]a2[a]"
    third = ">[u]a1[a]BB[u]a2[a]BBB[u]a3[a]"
    assert prompts == [*[first] * 3, *[second] * 3, *[third] * 3, *[">[u]b1[a]"] * 3]
    assert len({call.seed for call in backend.calls}) == 8, "methods draw the same, turns do not"
    for cell in cells:
        assert [(s.prompt, s.conversation, s.turn) for s in cell.samples] == [
            ("a", (1, 3), 0), ("a", (2, 3), 1), ("a", (3, 3), 2), ("b", (1, 1), 3),
        ]  # fmt: skip
        assert [s.prompt_tokens for s in cell.samples] == [len(one) for one in (first, second, third, ">[u]b1[a]")]
    assert witness.begun == [(["code", "code"], 4)]


def test_a_conversation_is_one_draw_and_its_turns_are_samples() -> None:
    _, _, (cell,) = run(talk(2, 3, 1, temperature=1.0), answer=answer)
    row = cell.row()
    assert (row["prompts"], row["draws"], row["turns"], row["turns_cut"]) == (3, 3, 6, 0)
    assert [r["conversation_turn"] for r in cell.sample_rows()] == [1, 2, 1, 2, 3, None]
    assert [r["cluster"] for r in cell.sample_rows()] == ["a", "a", "b", "b", "b", "c"]


def test_prompts_without_later_turns_have_no_columns_for_them() -> None:
    _, _, (cell,) = run(talk(1, 1))
    assert (cell.row()["turns"], cell.row()["turns_cut"]) == (None, None)
    assert [r["conversation_turn"] for r in cell.sample_rows()] == [None, None]


def test_arms_change_places_from_turn_to_turn() -> None:
    _, _, (cell,) = run(talk(2, 2, temperature=1.0), answer=answer)
    one, two, three, four = [s.order for s in cell.samples]
    assert one == two[::-1] == three[::-1] == four


def test_every_repetition_has_answers_of_its_own() -> None:
    def counted(call: Call) -> Sequence[int]:
        return [65 + call.seed % 26]

    backend, _, (cell,) = run(talk(2, temperature=1.0, repeat=3), answer=counted)
    seconds = [said(call) for call in backend.calls if "a2" in said(call)]
    baselines = [s.baseline.tokens for s in cell.samples if s.conversation[0] == 1]
    assert seconds == [f">[u]a1[a]{chr(one)}[u]a2[a]" for (one,) in baselines for _ in range(2)]
    assert [(s.repeat, s.turn) for s in cell.samples] == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


def test_a_conversation_that_outgrows_its_room_ends_and_is_counted() -> None:
    longest = len(">[u]a1[a]BB[u]a2[a]")
    _, _, (cell,) = run(talk(3, 2, most=longest, temperature=1.0), answer=answer)
    assert [(s.prompt, s.conversation) for s in cell.samples] == [
        ("a", (1, 3)), ("a", (2, 3)), ("b", (1, 2)), ("b", (2, 2)),
    ]  # fmt: skip
    assert (cell.row()["turns"], cell.row()["turns_cut"]) == (4, 1)


@pytest.mark.parametrize("at", range(1, 11))
def test_a_run_that_is_continued_within_a_conversation_goes_on_as_it_would_have(at: int) -> None:
    jobs = [talk(3, 2, temperature=1.0)]
    (whole,), _ = measure(jobs, FakeBackend(answer), [Witness()])
    calls: list[Call] = []

    def until(call: Call) -> Sequence[int]:
        calls.append(call)
        if len(calls) == at:
            raise KeyboardInterrupt
        return answer(call)

    (cell,), stopped = measure(jobs, FakeBackend(until), [Witness()])
    assert stopped is not None
    (again,), _ = measure(jobs, FakeBackend(answer), [Witness()], {cell.spec: cell})
    assert taken(again) == taken(whole)


def test_conversations_of_a_batch_go_on_together() -> None:
    backend, _, (cell,) = run(talk(3, 2, 1, 2, batch=2, temperature=1.0), answer=answer)
    assert [s.conversation[0] for s in cell.samples] == [1, 1, 2, 2, 3, 1, 1, 2]
    assert backend.batches == [2, 2, 2, 2, 1, 1, 2, 2, 1, 1]
    assert {(s.cluster, s.prompt) for s in cell.samples} == {
        ("batch 0", "a"), ("batch 0", "b"), ("batch 1", "c"), ("batch 1", "d"),
    }  # fmt: skip
    assert (cell.row()["prompts"], cell.row()["draws"], cell.row()["turns"]) == (4, 2, 8)


def test_until_ci_looks_after_whole_conversations() -> None:
    _, _, (cell,) = run(talk(*[2] * 26, until_ci=0.02), answer=lambda call: (66, 66))
    assert {s.prompt for s in cell.samples} == set("abcdefghijklmnopqrst")
    assert len(cell.samples) == 40


def test_output_of_a_later_turn_is_judged_after_its_own_prompt() -> None:
    asked: list[str] = []

    def unequal(call: Call) -> Sequence[int]:
        return (66, 67) if call.arm == "baseline" or "a2" not in said(call) else (66, 68)

    def scores(ids: Sequence[int], start: int, block: int) -> Any:
        asked.append("".join(map(chr, ids[:start])))
        return flat_scores(ids, start, block)

    _, _, (cell,) = run(talk(2), answer=unequal, scores=scores)
    assert (cell.lossless.verdict, cell.lossless.compared) == ("numeric", 2)
    assert set(asked) == {">[u]a1[a]BC[u]a2[a]"}


def test_a_baseline_that_fails_in_a_later_turn_ends_its_cells_with_what_they_have() -> None:
    _, _, (cell,) = run(talk(3, temperature=1.0), answer=failing(MemoryError(), at=3, once=False), scores=no_scores)
    assert (cell.status, len(cell.samples)) == ("oom", 1)


def test_the_names_of_prompts_are_told_apart_where_there_are_many() -> None:
    found = conversations(*[1] * 30)
    assert len({prompt.id for prompt in found.prompts}) == 30
    assert replace(found.prompts[0], before=("a", "b")).draw != found.prompts[0].draw
