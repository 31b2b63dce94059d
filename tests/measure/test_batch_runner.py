"""Batches in a run: which prompts are decoded together, what is written of it, the numbers, what the user sees."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from specbench.measure.course import warm_ups
from specbench.measure.group import Group, chunks, turns_of
from specbench.measure.runner import measure
from specbench.results import journal
from specbench.results.folder import RunFolder
from specbench.results.numbers import break_even, decodes, numbers, passes, rows_idle, timing
from specbench.results.reading import read_run
from specbench.results.samples import by_prompt, speedup_of
from specbench.show import run_output
from specbench.spec import BASELINE, SCHEMA_VERSION, RunSpec
from specbench.theory import formulas, optimum
from tests.support.faked_runs import failing, failing_arm, run
from tests.support.frontdoor import Command
from tests.support.measured import (
    FakeBackend,
    Witness,
    baseline_trace,
    cell,
    job,
    method_trace,
    prompt_set,
    sample,
)
from tests.support.tinypair import prompts

NAMES = [f"p{n}" for n in range(11)]


def sampled(*names: str, batch: int = 2, **changes: object) -> object:
    return job(*names, batch=batch, temperature=1.0, **changes)


# --- which prompts are decoded together -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "rows", "sizes"),
    [
        (3, 1, [1, 1, 1]),
        (20, 4, [4] * 5),  # five turns, none of them too small for the rows
        (20, 16, [20]),
        (3, 16, [3]),
        (100, 2, [6] * 2 + [8] * 11),  # 13 turns: at most four prompts for each row
        (64, 4, [12, 12, 12, 12, 16]),  # no row is without a prompt before the others are
        (24, 4, [4, 4, 4, 4, 8]),
        (9, 4, [4, 5]),
        (0, 4, [0]),
    ],
)
def test_prompts_of_a_turn(count: int, rows: int, sizes: Sequence[int]) -> None:
    found = chunks(range(count), rows)
    assert [n for part in found for n in part] == list(range(count))
    assert sorted(map(len, found)) == sorted(sizes)


@pytest.mark.parametrize(
    ("count", "most", "sizes"),
    [(20, 32, [20]), (100, 32, [20] * 5), (100, 4, [14] * 5 + [15] * 2), (1000, 32, [125] * 8), (20, 8, [20])],
)
def test_requests_that_come_at_times_of_their_own_have_turns_of_sixteen_at_least(
    count: int, most: int, sizes: Sequence[int]
) -> None:
    spec = RunSpec(arrivals=2.0, batch=most)
    found = turns_of(spec, prompt_set(*map(str, range(count))).prompts)
    assert sorted(len(turn.prompts) for turn in found) == sorted(sizes)


@pytest.mark.parametrize(
    ("count", "slots", "sizes", "by_turn"),
    [
        (20, 1, [1] * 20, False),
        (20, 4, [10, 10], False),  # five turns would have one request per slot
        (40, 4, [8] * 5, True),
        (80, 16, [40, 40], False),
        (170, 16, [34] * 5, True),
    ],
)
def test_requests_in_flight_have_turns_of_two_per_slot_and_are_draws_if_these_are_few(
    count: int, slots: int, sizes: Sequence[int], by_turn: bool
) -> None:
    servers = {"backend": "openai", "url": "http://a", "baseline_url": "http://b"}
    found = job(*map(str, range(count)), batch=slots, **servers)
    assert [len(turn.prompts) for turn in turns_of(found.spec, found.prompts.prompts)] == sizes
    assert Group([found], [], {}).by_turn is by_turn


def test_all_arms_decode_the_same_prompts_in_a_turn_and_every_second_turn_has_them_reversed() -> None:
    backend, witness, cells = run(sampled(*NAMES, k=1), sampled(*NAMES, k=2))  # type: ignore[arg-type]
    sizes = [len(part) for part in chunks(NAMES, 2)]
    assert backend.batches == [size for size in sizes for _ in range(3)]
    arms, at = [], 0
    for size in backend.batches:
        arms.append(backend.calls[at].arm)
        assert {call.arm for call in backend.calls[at : at + size]} == {arms[-1]}
        at += size
    orders = [arms[i : i + 3] for i in range(0, len(arms), 3)]
    assert orders[0] == orders[1][::-1]
    assert [s.prompt for s in cells[0].samples] == NAMES
    assert [[s.prompt for s in one[cells[1].spec]] for one in witness.turns] == [list(p) for p in chunks(NAMES, 2)]
    assert [s.turn for s in cells[0].samples] == [t for t, size in enumerate(sizes) for _ in range(size)]
    assert witness.begun == [(["code", "code"], 11)]


def test_a_prompt_has_the_seed_that_it_has_alone() -> None:
    seeds = [
        {(c.arm, c.prompt): c.seed for c in run(sampled(*NAMES, batch=batch))[0].calls}  # type: ignore[arg-type]
        for batch in (1, 2, 4)
    ]
    assert seeds[0] == seeds[1] == seeds[2]
    assert len(set(seeds[0].values())) == len(seeds[0])


def test_warm_up_decodes_a_batch() -> None:
    backend, _, _ = run(sampled("a", "b", "c", batch=2, warmup=2))  # type: ignore[arg-type]
    assert backend.batches == [2, 2] * 2 + [3] * 2
    assert [call.prompt[0] for call in backend.calls[:4]] == [10, 11, 12, 10]


@pytest.mark.parametrize(
    ("backend", "batch", "sizes"),
    [("native", 2, [2, 2, 2]), ("vllm-serve", 2, [2, 2]), ("vllm-serve", 8, [8]), ("vllm-serve", 1, [1, 1, 1])],
)
def test_a_server_is_warmed_up_with_as_few_batches_as_hold_the_prompts(
    backend: str, batch: int, sizes: list[int]
) -> None:
    spec = RunSpec(backend=backend, batch=batch)
    assert [len(sent) for sent, _ in warm_ups(BASELINE, spec, prompt_set("a", "b"), 3)] == sizes


def test_an_arm_that_fails_in_a_batch_loses_the_batch_alone() -> None:
    answer = failing_arm("chain K=2", MemoryError(), 13)
    _, _, cells = run(sampled(*NAMES[:4], k=1), sampled(*NAMES[:4], k=2), answer=answer)  # type: ignore[arg-type]
    assert [(c.status, len(c.samples)) for c in cells] == [("ok", 4), ("oom", 2)]


def test_until_ci_and_batches_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="leave --batch at 1"):
        RunSpec(until_ci=0.02, batch=2)


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [2, 7, 12, 22])
def test_a_run_that_was_cut_off_goes_on_as_it_would_have(at: int, tmp_path: Path) -> None:
    jobs = [sampled(*NAMES, k=1, repeat=2), sampled(*NAMES, k=2, repeat=2)]
    whole, _ = measure(jobs, FakeBackend(), [Witness()])  # type: ignore[arg-type]
    specs = [one.spec.model_dump(mode="json") for one in jobs]
    folder = RunFolder.create(tmp_path, "run", {"schema_version": SCHEMA_VERSION, "specs": specs})
    measure(jobs, FakeBackend(failing(KeyboardInterrupt(), at)), [folder])  # type: ignore[arg-type]
    folder.close()
    folder, backend = RunFolder.resume(folder.path), FakeBackend()
    had = max((len(c.samples) for c in folder.past.values()), default=0)
    again, _ = measure(jobs, backend, [folder], folder.past)  # type: ignore[arg-type]
    folder.close()
    assert len(backend.calls) == 3 * (22 - had)
    for found in (again, read_run(folder.path).cells):
        assert [[(*row_of(s), s.cluster) for s in c.samples] for c in found] == [
            [(*row_of(s), s.cluster) for s in c.samples] for c in whole
        ]


def row_of(one: object) -> tuple[object, ...]:
    return tuple(getattr(one, name) for name in ("prompt", "repeat", "turn", "order", "method", "baseline"))


def test_a_line_about_one_prompt_is_as_it_always_was() -> None:
    one = sample("p1")
    assert set(journal.turn_line({RunSpec(): [one]})) == {*journal.SHARED, "baseline", "arms"}
    together = [replace(sample(name), cluster="batch 0") for name in ("p1", "p2")]
    spec = RunSpec(batch=2)
    line = json.loads(json.dumps(journal.turn_line({spec: together})))
    assert (line["cluster"], len(line["batch"])) == ("batch 0", 2)
    assert journal.samples_of(line) == {spec.key: together}


def test_a_line_about_requests_in_few_turns_keeps_what_their_draws_are() -> None:
    plain, carrying = RunSpec(batch=2, k=1), RunSpec(batch=2, k=2)
    alone = [sample(name, turn=3) for name in ("p1", "p2")]
    blocks = [replace(one, cluster="block 0") for one in alone]
    line = json.loads(json.dumps(journal.turn_line({plain: alone, carrying: blocks})))
    assert journal.samples_of(line) == {plain.key: alone, carrying.key: blocks}
    assert decodes(alone) == decodes(blocks) == [[0, 1]]


# --- the numbers ------------------------------------------------------------------------------------------------------


def batched(*accepted: Sequence[int], cluster: str = "batch 0", turn: int = 0) -> list[object]:
    """Prompts of one turn, each with an equal part of its seconds."""
    methods = [method_trace(one) for one in accepted]
    bases = [baseline_trace(one.tokens) for one in methods]
    shares = [math.fsum(t.seconds for t in arm) / len(arm) for arm in (bases, methods)]
    return [
        sample(
            f"{cluster} {n}",
            cluster=cluster,
            turn=turn,
            baseline=replace(base, seconds=shares[0]),
            method=replace(method, seconds=shares[1]),
        )
        for n, (base, method) in enumerate(zip(bases, methods, strict=True))
    ]


def test_prompts_that_share_their_time_are_one_draw() -> None:
    some = [s for n in range(3) for s in batched((4, 2 + n), (1, n), cluster=f"batch {n}", turn=n)]
    found = numbers(some, 4, rows=2)
    assert (found["prompts"], found["draws"], len(by_prompt(some))) == (6, 3, 3)  # type: ignore[arg-type]
    alone = speedup_of(batched((4, 2), (0, 0), (1, 1)))  # type: ignore[arg-type]
    assert math.isnan(alone.low), "one batch says nothing about another"
    assert speedup_of(some).high > speedup_of(some).value  # type: ignore[arg-type]


def test_a_slow_batch_is_an_outlier_and_its_prompts_are_marked() -> None:
    some = [s for n in range(12) for s in batched((4, 2), (1, 2), (0,), cluster=f"batch {n}", turn=n)]
    slow = {"batch 7": 10.0}
    some = [replace(s, method=replace(s.method, seconds=s.method.seconds * slow.get(s.cluster, 1))) for s in some]
    rows = cell(*some, batch=3).sample_rows()
    assert [r["prompt"] for r in rows if r["outlier"]] == [f"batch 7 {n}" for n in range(3)]
    assert {r["cluster"] for r in rows} == {f"batch {n}" for n in range(12)}
    assert numbers(some, 4, rows=3)["outliers"] == 1


@pytest.mark.parametrize(("lengths", "rows", "expected"), [([3, 5], 1, 8), ([3, 5], 2, 5), ([3, 5, 4, 1], 2, 7)])
def test_passes_are_those_of_rows_that_are_refilled(lengths: Sequence[int], rows: int, expected: int) -> None:
    assert passes([[baseline_trace(range(n)) for n in lengths]], rows) == expected
    assert passes([[baseline_trace(range(n)) for n in lengths]] * 2, rows) == 2 * expected


def test_rows_that_wait_for_the_longest_of_a_turn_are_idle() -> None:
    ragged = batched((4, 2), (0, 0, 1, 1), (1,))  # two, four and one round
    assert rows_idle(ragged, 3) == pytest.approx(1 - 7 / 12)  # type: ignore[arg-type]
    assert rows_idle(ragged, 2) == pytest.approx(1 - 7 / 8)  # type: ignore[arg-type]
    assert rows_idle([sample(), sample("p2")], 1) == 0
    assert numbers(ragged, 4, 3)["rows_idle"] == pytest.approx(5 / 12)  # type: ignore[arg-type]
    tokens = [8, 6, 2]  # steps of the baseline: one row waits for the longest
    idle = 1 - sum(tokens) / (3 * max(tokens))
    assert numbers(ragged, 4, 3)["baseline_rows_idle"] == pytest.approx(idle)  # type: ignore[arg-type]


@pytest.mark.parametrize(("alpha", "batch"), [(0.6, 162), (0.7, 283), (0.8, 532)])
def test_the_published_break_even_batches(alpha: float, batch: int) -> None:
    """A published fit: F = 5.886 ms, u = 21.0 µs a token, h = 1.207 ms, D = 2.135 ms, K = 3."""
    found = optimum.break_even_batch(formulas.expected_tokens(alpha, 3), 3, 5.886, 0.0210, 1.207, 2.135)
    assert found == pytest.approx(batch, abs=0.7)  # u has three digits
    step, round_ = 5.886 + 0.0210 * found + 1.207, 5.886 + 4 * 0.0210 * found + 1.207 + 2.135
    assert formulas.expected_tokens(alpha, 3) * step / round_ == pytest.approx(1)


def test_break_even_where_there_is_none() -> None:
    assert optimum.break_even_batch(1.0, 3, 5.0, 0.1, 1.0, 2.0) == 0
    assert optimum.break_even_batch(4.0, 3, 5.0, 0.1, 1.0, 2.0) == math.inf
    for k, per_token in ((0, 0.1), (3, 0.0), (3, -0.1), (3, math.nan)):
        assert math.isnan(optimum.break_even_batch(2.0, k, 5.0, per_token, 1.0, 2.0))
    assert math.isnan(optimum.break_even_batch(2.0, 3, math.nan, 0.1, 1.0, 2.0))


def test_the_break_even_batch_of_a_cell_follows_from_its_own_passes() -> None:
    some = batched((4, 2), (1, 2), (0, 0))
    base, method = (timing([getattr(s, arm) for s in some]) for arm in ("baseline", "method"))
    steps, rounds = max(8, 5 + 2), 2 + 2  # two rows: texts of 8, 5 and 2 tokens, of two rounds each
    one, many = base.verify / steps, method.verify / rounds
    u = (many - one) / (2 * 4)
    expected = optimum.break_even_batch(15 / 6, 4, one - 2 * u, u, base.seconds / steps - one, method.draft / rounds)
    assert break_even(some, base, method, 4, 2) == pytest.approx(expected)  # type: ignore[arg-type]
    assert numbers(some, 4, 2)["break_even_batch"] == pytest.approx(expected)  # type: ignore[arg-type]
    assert math.isnan(numbers([sample(method=baseline_trace(range(3)))], 4)["break_even_batch"])


# --- what the user sees -----------------------------------------------------------------------------------------------


def rows_of_batches() -> list[dict[str, object]]:
    some = [s for n in range(6) for s in batched((4, 2), (1, n), cluster=f"batch {n}", turn=n)]
    return [cell(*some, batch=b, k=k).row() for b in (16, 1) for k in (4, 2)] + [cell(batch=64, status="oom").row()]


def run_text(rows: list[dict[str, object]], style: str, shown: run_output.Shown) -> str:
    screen = io.StringIO()
    run_output.print_run(rows, style, Console(file=screen, width=110), shown)
    return screen.getvalue()


def test_throughput_by_batch_is_a_table() -> None:
    rows = rows_of_batches()
    explained = run_output.Shown(explain=True)
    text = run_text(rows, "table", explained)
    assert text.count("throughput by batch") == 1
    table = text[text.index("throughput by batch") : text.index("best K by batch")].splitlines()
    found = [line.split()[:2] for line in table if line.split()[:1] and line.split()[0].isdigit()]
    assert found == [["1", "2"], ["16", "2"], ["1", "4"], ["16", "4"], ["64", "4"]]
    assert "oom" in text
    assert "throughput by batch" not in run_text(rows[:2], "md", explained)
    assert run_text(rows, "md", explained).partition("throughput by batch")[2].count("| 16 | 4 | ") == 1


@pytest.mark.processor
def test_a_run_says_that_batches_are_what_varies(run: Command) -> None:
    done = run("--batch", "1,3", "--limit", "5", "--temperature", "0", "--explain", data=None)
    assert done.code == 0, done.err
    assert [(row["batch"], row["prompts"], row["draws"], row["lossless"]) for row in done.table()] == [
        ("1", "3", "3", "identical"), ("3", "3", "1", "identical"),
    ]  # fmt: skip
    assert "throughput by batch" in done.out
    assert "the interval is unknown, as there was one turn (--limit 15 gives 5)" in done.out
    one, three = ([r for r in done.table("samples.csv") if r["cell"] == row["cell"]] for row in done.table())
    assert [r["output_sha256"] for r in one] == [r["output_sha256"] for r in three]


@pytest.mark.processor
def test_sampled_text_is_that_of_decoding_alone(run: Command, tmp_path: Path) -> None:
    data = prompts(tmp_path / "many.jsonl", 3, 9, 4, 2, 12, 5, 7)
    law = ("--temperature", "1", "--dtype", "float64")  # no draw lies as close to a boundary as two sums do
    done = run("--batch", "1,3", "--limit", "7", *law, "--max-new-tokens", "12", data=data)
    assert done.code == 0, done.err
    with (done.folder / "samples.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [r["output_sha256"] for r in found[:7]] == [r["output_sha256"] for r in found[7:]]
    assert [r["baseline_output_sha256"] for r in found[:7]] == [r["baseline_output_sha256"] for r in found[7:]]
    assert len({r["cluster"] for r in found[7:]}) == 2
