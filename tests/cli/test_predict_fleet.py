"""`specbench predict --fleet`: servers under load from the costs that a run measured at several batches."""

import csv
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from specbench.cli import reading
from specbench.errors import UsageError
from specbench.judge.fleet import arms
from tests.support.made_runs import made_run

pytestmark = pytest.mark.usefixtures("made_runs")
app = typer.Typer()
app.command(name="predict")(reading.predict)

HEADER = (
    "cell,dataset,method,k,batch,tokens_per_round,acceptance_at_1,acceptance_at_2,"
    "baseline_step_ms,round_ms,baseline_prefill_ms,prefill_ms"
)
# Four rows share the 16, 32 and 18 ms of a step or round.
ROWS = """
b0,code,baseline,0,1,,,,,,,
c1,code,chain,2,1,2.25,0.75,0.666667,10,15,50,60
c4,code,chain,2,4,2.25,0.75,0.666667,4,8,50,60
s1,code,sam,4,1,1.5,,,10,12,50,50
s4,code,sam,4,4,1.5,,,4,4.5,50,50
"""
SAMPLES = [
    [{"cell": cell, "baseline_tokens": tokens} for tokens in some]
    for cell, some in (("c1", (10, 30)), ("c4", (99,)), ("s1", (10, 30)))
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_run(tmp_path, HEADER + ROWS, SAMPLES)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["--fleet", *map(str, arguments)])


def rows(*arguments: object) -> list[dict[str, str]]:
    result = call(*arguments, "--format", "csv")
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_one_user_gets_what_one_row_takes(run: Path) -> None:
    found = rows("--from-run", run, "--users", 1, "--output-tokens", 20, "--requests", 400)
    assert [(row["method"], row["users"], row["slots"]) for row in found] == [
        ("baseline", "1", "4"), ("chain K2", "1", "4"), ("sam K4", "1", "4"),
    ]  # fmt: skip
    baseline = found[0]
    assert float(baseline["per_token_seconds_median"]) == pytest.approx(0.010)
    assert float(baseline["first_token_seconds_p99"]) == pytest.approx(0.060)
    assert float(baseline["rows"]) == pytest.approx(1)
    assert float(baseline["tokens_per_second"]) == pytest.approx(20 / 0.25, rel=0.05)  # the mean length is drawn


def test_acceptance_at_each_place_makes_the_rounds() -> None:
    """0.25, 0.25 and 0.5 of one, two and three tokens; without places the whole numbers around the mean."""
    baseline, chain, sam = arms(list(csv.DictReader(io.StringIO(HEADER + ROWS)))[1:], None)
    assert baseline.engine.tokens == (1.0,)
    assert chain.engine.tokens == pytest.approx((0.25, 0.25, 0.5), abs=1e-5)
    assert sam.engine.tokens == (0.5, 0.5)
    assert dict(chain.engine.seconds) == pytest.approx({1: 0.015, 4: 0.032})
    assert dict(baseline.engine.seconds) == pytest.approx({1: 0.010, 4: 0.016})


def row(batch: int, **more: object) -> dict[str, str]:
    """A cell of 10 prompts, each of 20 tokens in 8 rounds."""
    told = {"cell": f"c{batch}", "dataset": "code", "method": "chain", "k": 2, "batch": batch, "tokens_per_round": 2.5,
            "prompts": 10, "rounds": 80, "baseline_tokens": 200}  # fmt: skip
    return {name: str(value) for name, value in {**told, **more}.items()}


def times(step: float, round_: float, prefill: float) -> dict[str, float]:
    return {"baseline_step_ms": step, "round_ms": round_, "baseline_prefill_ms": prefill, "prefill_ms": prefill}


def test_rows_that_stood_idle_took_no_part_of_the_time() -> None:
    """40 rounds of 30 ms for 80 rounds of rows, which have 15 ms each: two of four stood idle; the baseline's never."""
    idle = {"rows_idle": 0.5, "baseline_rows_idle": 0.0}
    baseline, chain = arms([row(1, **times(10, 15, 0)), row(4, **times(4, 15, 0), **idle)], None)
    assert dict(baseline.engine.seconds) == pytest.approx({1: 0.010, 4: 0.016})
    assert dict(chain.engine.seconds) == pytest.approx({1: 0.015, 4: 0.030})


def test_prompts_within_the_seconds_of_a_batch_are_taken_out_of_its_steps() -> None:
    """Of every prompt 40 ms: 2 of each of its 20 steps, 5 of each of its 8 rounds."""
    baseline, chain = arms([row(1, **times(10, 15, 40)), row(4, **times(6, 13, 0))], None)
    assert dict(baseline.engine.seconds) == pytest.approx({1: 0.010, 4: 0.016})
    assert dict(chain.engine.seconds) == pytest.approx({1: 0.015, 4: 0.032})
    assert chain.engine.prefill == pytest.approx(0.040)
    with pytest.raises(UsageError, match="cell c4: its prompts one by one would take longer"):
        arms([row(1, **times(10, 15, 40)), row(4, **times(2, 13, 0))], None)


def test_steps_are_not_taken_from_requests_that_came_at_times_of_their_own() -> None:
    closed, open_ = ([row(n, **times(10, 15, 0), **more) for n in (1, 4)] for more in ({}, {"arrivals": 2.0}))
    assert len(arms([*closed, *open_], None)) == 2
    with pytest.raises(UsageError, match="make a run with --batch 1,2,4,8"):
        arms(open_, None)


def test_speculation_that_pays_for_one_row_may_not_for_four(run: Path) -> None:
    """A round of the chain gives 2.25 tokens for 1.5 steps of one row, and for two of four."""
    one, four = (rows("--from-run", run, "--users", slots, "--slots", slots, "--requests", 300) for slots in (1, 4))
    gain = [float(found[1]["tokens_per_second"]) / float(found[0]["tokens_per_second"]) for found in (one, four)]
    assert gain[0] > 1.05 > gain[1]


def test_the_cost_is_that_of_devices_by_the_hour(run: Path) -> None:
    (row, *_) = rows("--from-run", run, "--users", 8, "--devices", 2, "--price", 3.6, "--requests", 100)
    assert float(row["cost_per_million_tokens"]) == pytest.approx(2 * 1e6 / 1000 / float(row["tokens_per_second"]))
    assert float(row["tokens_per_second_per_device"]) == pytest.approx(float(row["tokens_per_second"]) / 2)


def test_readers_get_a_table_a_capacity_and_what_was_assumed(run: Path) -> None:
    shown = " ".join(call("--from-run", run, "--arrivals", 500, "--arrivals", 0.1, "--requests", 50).stdout.split())
    assert "code · 500 requests a second · 1 device of 4 slots" in shown
    assert "code · 0.1 requests a second" in shown
    assert "overloaded, so waits grow" in shown
    assert shown.count("continuous batching, first come, first served") == 1


def test_numbers_that_are_not_known_are_null(run: Path) -> None:
    made_run(run, HEADER + ROWS, [[{"cell": cell, "baseline_tokens": 10}] for cell in ("c1", "s1")])
    result = call("--from-run", run, "--users", 1, "--output-tokens", 1, "--requests", 20, "--format", "json")
    (row, *_) = json.loads(result.stdout)
    assert row["per_token_seconds_median"] is None  # answers of one token
    assert row["cost_per_million_tokens"] is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--from-run", "RUN"), "no load: give --arrivals"),
        (("--from-run", "RUN", "--users", 1, "--alpha", 0.5), "leave out --alpha"),
        (("--from-run", "RUN", "--users", 1, "--slots", 9), "--slots 9: measured were batches from 1 to 4"),
        (("--from-run", "RUN", "--arrivals", 0), "--arrivals must be above 0"),
        (("--from-run", "ONE", "--users", 1), "make a run with --batch 1,2,4,8"),
        (("--from-run", "ODD", "--users", 1), "cell c4: round_ms is '-3'"),
    ],
)
def test_what_cannot_be_played_through_is_refused(
    run: Path, arguments: tuple[object, ...], line: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    one = made_run(tmp_path_factory.mktemp("one"), HEADER + "\n" + ROWS.split("\n")[2] + "\n", SAMPLES)
    odd = made_run(tmp_path_factory.mktemp("odd"), (HEADER + ROWS).replace("4,8,50", "4,-3,50"), SAMPLES)
    places = {"RUN": run, "ONE": one, "ODD": odd}
    result = call(*(places.get(str(one), one) for one in arguments))
    assert isinstance(result.exception, Exception)
    assert line in str(result.exception)
