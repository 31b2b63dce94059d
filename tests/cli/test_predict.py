"""`specbench predict` through its front door, and the list of K that it shares with sweep-k."""

import csv
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from specbench.cli import reading
from specbench.errors import UsageError
from specbench.measure.parsing import parse_k_list
from specbench.theory import formulas
from tests.support.made_runs import made_run

pytestmark = pytest.mark.usefixtures("made_runs")
app = typer.Typer()
app.command(name="predict")(reading.predict)

RESULTS = """dataset,method,k,alpha,c,v,overhead,speedup,speedup_calibrated,status
humaneval,chain,2,0.7,0.1,1.1,0.02,1.61,1.663,ok
humaneval,chain,3,0.7,0.1,,,1.63,,ok
xsum,chain,3,1.000001,0.1,1.2,0.1,1.12,1.075,ok
xsum,chain,5,,,,,,,failed
"""


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def rows(*arguments: str | Path) -> list[dict[str, str]]:
    result = call(*arguments, "--format", "csv")
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return made_run(tmp_path, RESULTS)


def test_csv_has_full_precision_one_row_per_alpha_c_and_k_and_c_hat_is_c_unless_given() -> None:
    table = rows("--alpha", "0.7", "--alpha", "0.8", "--c", "0.05", "--k", "0,3")
    assert [(row["alpha"], row["k"]) for row in table] == [("0.7", "0"), ("0.7", "3"), ("0.8", "0"), ("0.8", "3")]
    assert float(table[1]["speedup_predicted"]) == formulas.speedup(0.7, 3, 0.05)
    assert (table[1]["best_k"], table[1]["near_best_low"], table[1]["near_best_high"]) == ("6", "5", "6")
    assert table[0]["accepted_per_drafted"] == table[0]["break_even_alpha"] == ""
    for more, c_hat in (((), 0.1), (("--c-hat", "0.02"), 0.02)):
        (row,) = rows("--alpha", "0.7", "--c", "0.1", "--k", "4", *more)
        assert float(row["operations"]) == formulas.operations(0.7, 4, c_hat)


def test_the_table_rounds_marks_the_best_k_and_sums_up() -> None:
    result = call("--alpha", "0.7", "--c", "0.05")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["3", "2.533", "2.203", "1.638", "0.511"] in lines  # the tutorial truncates to 2.532 and 2.202
    assert ["5", "2.941", "2.353", "2.125", "0.388", "within", "1", "%"] in lines
    assert ["6", "3.059", "2.353", "2.387", "0.343", "best"] in lines
    assert "best K = 6 (speedup 2.353), within 1 %: K = 5 to 6; break-even at alpha 0.231 for this K" in result.stdout
    assert "The formula assumes" in result.stderr
    assert "The formula assumes" not in result.stdout


def test_one_table_for_each_alpha_and_c_which_says_when_no_k_pays_or_the_best_was_not_asked_for() -> None:
    output = call("--alpha", "0.7", "--alpha", "0.8", "--c", "0.05", "--c", "0.1").stdout
    assert [line.strip() for line in output.splitlines() if line.startswith("alpha")] == [
        f"alpha {alpha}, c {c}, c-hat {c}" for alpha in (0.7, 0.8) for c in (0.05, 0.1)
    ]
    assert "no K pays: that needs alpha above c = 0.5" in call("--alpha", "0.4", "--c", "0.5").stdout
    assert "the speedup grows with every K" in call("--alpha", "0.4", "--c", "0").stdout
    for ks in ("0", "4"):
        text = call("--alpha", "0.7", "--c", "0.05", "--k", ks).stdout
        assert "best K = 6 (speedup 2.353, not among those of --k), within 1 %: K = 5 to 6; " in " ".join(text.split())
    assert "within 1 %: K = 2 alone; " in " ".join(call("--alpha", "0.5", "--c", "0.1", "--k", "0-4").stdout.split())


def test_json_and_jsonl_carry_the_same_records_and_nothing_else_and_markdown_is_a_table() -> None:
    arguments = ("--alpha", "0.7", "--c", "0.1", "--k", "0-2", "--format")
    result = call(*arguments, "json")
    records = json.loads(result.stdout)
    assert records == [json.loads(line) for line in call(*arguments, "jsonl").stdout.splitlines()]
    assert [record["k"] for record in records] == [0, 1, 2]
    assert records[0]["accepted_per_drafted"] is None
    assert result.stderr == ""
    output = call("--alpha", "0.7", "--c", "0.05", "--k", "6", "--format", "md").stdout
    assert "| 6 | 3.059 | 2.353 | 2.387 | 0.343 | best |" in output.splitlines()


def test_from_run_puts_the_predictions_beside_the_measured_speedup(run_folder: Path) -> None:
    first, no_terms, never_accepted = rows("--from-run", run_folder)
    assert (first["dataset"], first["k"], first["speedup"]) == ("humaneval", "2", "1.61")
    assert float(first["speedup_predicted"]) == formulas.speedup(0.7, 2, 0.1)
    assert first["speedup_calibrated"] == "1.663"
    assert no_terms["speedup_calibrated"] == ""
    assert never_accepted["alpha"] == "1.0"  # a rounding error above 1 is no error of the user


def test_from_run_says_what_it_leaves_out(run_folder: Path) -> None:
    result = call("--from-run", run_folder / "results.csv")
    assert "left out 1 of 4 rows" in result.stderr
    assert [
        "humaneval", "chain", "2", "0.700", "0.100", "0.200", "1.100", "0.020", "1.610", "1.825", "1.663", "4", "1.981",
        "4",
    ] in [line.split() for line in result.stdout.splitlines()]  # fmt: skip


AT_TWO = """method,k,alpha,c,v,overhead,speedup,acceptance_at_1,acceptance_at_2,tokens,prompts,repeat,schedule,
eagle-tree,2,0.5,0.1,1.2,0.1,1.4,,,4000000,20,2,constant,2
chain,2,0.5,0.1,1.2,0.1,1.4,0.8,0.5,4000000,20,2,confidence,2
prompt-lookup,2,0.5,0.1,1.2,0.1,1.4,0.8,0.5,4000000,20,2,constant,1.1
chain,2,0.5,0.1,1.2,0.1,1.4,0.8,0.5,4000000,20,2,constant,2
""".replace("schedule,\n", "schedule,drafted_per_round\n")
AT_FOUR = "chain,4,0.5,0.09,1.5,0.1,1.2,0.8,0.5,4000000,20,2,constant,4\n"


@pytest.mark.parametrize(("more", "costs"), [("", (1.2, 1.4, 1.8, 2.6)), (AT_FOUR, (1.17, 1.4, 1.86, 2.78))])
def test_other_lookaheads_of_a_run_take_its_acceptance_and_costs(
    tmp_path: Path, more: str, costs: tuple[float, ...]
) -> None:
    """1.8, 2.2, 2.5 and 2.59 tokens, with the mean alpha at later positions; a round takes 0.1 steps more than that."""
    run = made_run(tmp_path, AT_TWO + more)
    found = [
        row for row in rows("--from-run", run, "--k", "0-2,4,8") if (row["method"], row["measured_k"]) == ("chain", "2")
    ]
    assert {row["speedup_calibrated"] for row in found[:5]} == {""}, "an adaptive lookahead"
    assert [(row["speedup"], row["k"]) for row in found[5:]] == [("1.4", k) for k in "01248"]
    tokens = (1.8, 2.2, 2.5, 2.59375)
    speedups = [number / (cost + 0.1) for number, cost in zip(tokens, costs, strict=True)]
    assert [float(row["speedup_calibrated"]) for row in found[5:]] == pytest.approx([1, *speedups], rel=1e-4)
    others = [row for row in rows("--from-run", run, "--k", "1") if row["method"] != "chain"]
    assert {row["speedup_calibrated"] for row in others} == {""}, "a tree, and a lookup that does not always find"
    lines = [line.split() for line in call("--from-run", run, "--k", "1").stdout.splitlines()]
    assert ["chain", "2", "1.400", "1", f"{speedups[0]:.3f}"] in lines


COLUMNS = "dataset,method,k,alpha,c,v,overhead,speedup,drafted_per_round,draft_cost_per"
ONE_PASS = f"""{COLUMNS}
code,medusa,2,0.5,0.125,1.5,0.25,0.8,2.0,round
code,prompt-lookup,4,0.5,0.25,1.0,0.0,1.4,1.0,round
code,chain,2,0.5,0.125,1.5,0.25,0.8,2.0,token
"""


@pytest.mark.parametrize(
    ("tiers", "said"), [(("graph", "eager"), True), (("graph", "graph"), False), (("", ""), False)]
)
def test_costs_of_several_tiers_are_named(tmp_path: Path, tiers: tuple[str, str], said: bool) -> None:
    lines = [f"{k},0.7,0.1,1.5,{tier}\n" for k, tier in enumerate(tiers, start=4)]
    found = call("--from-run", made_run(tmp_path, "k,alpha,c,speedup,tier_resolved\n" + "".join(lines)))
    note = "note: the rows are of the tiers graph, eager: c and v of one do not hold in another"
    assert (found.exit_code, note in found.stderr, "tiers" in found.stderr) == (0, said, said)


def test_from_run_takes_what_one_pass_drafts_for_the_same_at_every_k(tmp_path: Path) -> None:
    """1.75 tokens for 1.25 steps at K = 2, at most 2 for the same 1.25."""
    head, lookup, chain = rows("--from-run", made_run(tmp_path, ONE_PASS))
    assert (head["c_round"], head["speedup_predicted"]) == ("0.25", "1.4")
    assert (head["best_k"], head["best_speedup"], head["near_best"]) == ("1000", "1.6", "6-1000")
    assert (lookup["c_round"], float(lookup["speedup_predicted"])) == ("0.25", 1.9375 / 1.25)  # most rounds found none
    assert (chain["best_k"], float(chain["best_speedup"]), chain["near_best"]) == ("2", 1.4, "2")


def test_what_one_pass_drafts_can_be_given_in_the_place_of_c() -> None:
    given = ("--alpha", "0.5", "--c-round", "0.25", "--k", "1-3")
    found = rows(*given, "--c", "0.25")
    assert [(row["at_once"], row["k"], float(row["speedup_predicted"])) for row in found] == [
        ("False", "1", 1.2), ("False", "2", pytest.approx(1.75 / 1.5)), ("False", "3", pytest.approx(1.875 / 1.75)),
        ("True", "1", 1.2), ("True", "2", 1.4), ("True", "3", 1.5),
    ]  # fmt: skip
    text = " ".join(call(*given).stdout.split())
    assert "alpha 0.5, c of a round 0.25, c-hat of a round 0.25" in text
    assert "the speedup grows with every K, to 1.600 at K = 1000; within 1 %: K = 6 to 1000" in text
    assert "some K pays from alpha 0.200 on, c / (1 + c)" in text
    none = call("--alpha", "0.2", "--c-round", "0.25").stdout
    assert "no K pays: that needs alpha above c / (1 + c) = 0.2" in none
    assert "within 1 %: K = 4 to 1000" in " ".join(call("--alpha", "0.335", "--c-round", "0.5").stdout.split())
    assert "no K up to 1000 pays" in call("--alpha", "0.99951", "--c-round", "2000").stdout


def test_from_run_needs_only_alpha_c_k_and_speedup_and_prints_markup_in_a_name_as_it_is(tmp_path: Path) -> None:
    (row,) = rows("--from-run", made_run(tmp_path / "bare", "k,alpha,c,speedup\n4,0.7,0.1,1.5\n"))
    assert (row["dataset"], row["v"], row["speedup_calibrated"]) == ("", "", "")
    run = made_run(tmp_path / "named", "dataset,k,alpha,c,speedup\n[red]a|b,4,0.7,0.1,1.5\n")
    assert "[red]a|b" in call("--from-run", run).stdout
    assert r"| \[red\]a\|b |" in call("--from-run", run, "--format", "md").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k,alpha\n4,0.7\n", "has no row with"),
        ("", "no cell of"),
        ("k,alpha,c,speedup\n4,,0.1,\n", "has no row with"),
        ("k,alpha,c,speedup\n4,high,0.1,1.5\n", "row 1: alpha is 'high'"),
        ("k,alpha,c,speedup\n4,0.7,0.1,nan\n", "row 1: speedup is 'nan'"),
        ("k,alpha,c,speedup\n4,0.7,0.1,1.5\n4,1.7,0.1,1.5\n", "row 2: alpha must be in [0, 1]"),
        ("k,alpha,c,speedup\n2.5,0.7,0.1,1.5\n", "row 1: k must be a whole number"),
        ("k,alpha,c,speedup\n1e12,0.7,0.1,1.5\n", "row 1: k must be a whole number"),
        ("k,alpha,c,speedup\n-1,0.7,0.1,1.5\n", "row 1: K must be 0 or more"),
    ],
)
def test_an_unusable_run_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    result = call("--from-run", made_run(tmp_path, text))
    assert isinstance(result.exception, UsageError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert result.stdout == ""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "ks"),
    [
        ("4", [4]), ("0", [0]), ("1,2,4", [1, 2, 4]), ("4, 2,4", [2, 4]), ("1-4", [1, 2, 3, 4]), ("3-3", [3]),
        ("1-16+3", [1, 4, 7, 10, 13, 16]), ("1-3,8,10-14+2", [1, 2, 3, 8, 10, 12, 14]),
        *((text, None) for text in ("", ",", "4,", "a", "-1", "1--3", "1-", "4-1", "1-9+0", "2.5", "1+2", "²", "1001")),
        ("1-" + "9" * 5000, None),
    ],
)  # fmt: skip
def test_list_of_k(text: str, ks: list[int] | None) -> None:
    if ks is None:
        with pytest.raises(UsageError, match=r"^[^\n]+$"):
            parse_k_list(text)
    else:
        assert parse_k_list(text) == ks
