"""`specbench predict --parallel`: numbers by hand, hits counted in traces, cells of a run, and what is refused."""

import csv
import io
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from specbench.cli import predict
from specbench.errors import UsageError
from specbench.metrics import RoundCounts
from specbench.results.trace_file import TokenView, TracedRound, to_json

app = typer.Typer()
app.command(name="predict")(predict.predict)

COLUMNS = "dataset,method,k,alpha,c,v,overhead,speedup,acceptance_at_1,acceptance_at_2,drafted_per_round,draft_head"
RESULTS = f"""{COLUMNS}
code,chain,2,0.5,0.5,1.25,0.25,0.7,0.5,0.5,2.0,
code,early-exit,2,0.5,0.5,1.25,0.25,0.7,0.5,0.5,2.0,
code,prompt-lookup,2,0.5,0.5,1.25,0.25,0.7,0.5,0.5,2.0,
code,chain,2,0.5,0.5,1.25,0.25,0.7,0.5,0.5,2.0,eagle-3
code,gone.yaml,2,0.5,0.5,1.25,0.25,0.7,0.5,0.5,2.0,
"""


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["--parallel", *map(str, arguments)])


def rows(*arguments: str | Path) -> list[dict[str, str]]:
    result = call(*arguments, "--format", "csv")
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def trace(file: Path, *rounds: tuple[int, int | None], k: int = 2, method: str = "chain") -> Path:
    """A trace of rounds with so many of K drafts accepted, and a guess."""
    traced = [TracedRound((), RoundCounts(k, min(n + 1, k), n, n + 1, ()), guess) for n, guess in rounds]
    file.write_text(to_json(TokenView("", {"method": method, "K": k}, tuple(traced))))
    return file


def speedups(row: dict[str, str], first: str = "speedup") -> list[float]:
    return [float(row[name]) for name in (first, "speedup_parallel", "speedup_ready")]


def test_plain_numbers_by_hand() -> None:
    """α 0.5, K 2: E = 1.75. c 0.5: Kc = 1; v 1.25."""
    given = ("--alpha", "0.5", "--c", "0.5", "--v", "1.25", "--k", "2")
    (row,) = rows(*given, "--hit", "0.5")
    assert speedups(row) == [1.75 / 2.25, 1.75 / 1.75, 1.75 / 1.25]
    (alone,) = rows(*given)
    assert float(alone["hit"]) == 0.125
    assert float(alone["speedup_parallel"]) == 1.75 / (1.25 + 0.875)
    (at_once,) = rows("--alpha", "0.5", "--c-round", "0.5", "--k", "2", "--hit", "1")
    assert speedups(at_once) == [1.75 / 1.5, 1.75, 1.75]
    assert "α" not in call(*given).stdout
    assert "best" in call(*given).stdout


def test_hits_are_counted_in_the_rounds_that_another_follows(tmp_path: Path) -> None:
    """Of 4 rounds: one was accepted whole and guessed, one whole with the second guess, two ended at a correction."""
    file = trace(tmp_path / "a.json", (2, 0), (2, 1), (0, 0), (1, 5), (2, 0))
    found = {row["prepared"]: row for row in rows("--trace", file, "--c", "0.5", "--v", "1.25")}
    assert {name: float(row["hit"]) for name, row in found.items()} == {
        "one text": 0.25, "1 per place": 0.5, "2 per place": 0.75, "4 per place": 0.75, "8 per place": 1.0,
    }  # fmt: skip
    assert {float(row["expected_tokens"]) for row in found.values()} == {9 / 4}  # 3 + 3 + 1 + 2
    assert float(found["1 per place"]["speedup_parallel"]) == 2.25 / 1.75
    twice = rows("--trace", file, "--trace", trace(tmp_path / "b.json", (2, 0), (0, 9)), "--c", "0.5")
    assert float(twice[0]["hit"]) == 2 / 5


def test_the_cells_of_a_run_with_what_it_knows_itself_and_with_traces(tmp_path: Path) -> None:
    """E = 1 + 0.5 + 0.25; both drafts are accepted in a quarter of the rounds; Kc = 1, v = 1.25, overhead 0.25."""
    (tmp_path / "results.csv").write_text(RESULTS)
    (row,) = rows("--from-run", tmp_path)
    assert (row["method"], row["hit"], row["prepared"]) == ("chain", "0.25", "at most, of one text")
    assert speedups(row, "speedup_calibrated") == [1.75 / 2.5, 1.75 / 2.25, 1.75 / 1.5]
    (row,) = rows("--from-run", tmp_path, "--hit", "1")
    assert row["speedup_parallel"] == row["speedup_ready"]
    file = trace(tmp_path / "a.json", (2, 0), (0, 9), (2, 0))
    assert [one["hit"] for one in rows("--from-run", tmp_path, "--trace", file)] == ["0.5", "0.5", "0.5", "0.5", "0.5"]
    assert "left out 4 of 5 rows: only methods whose every draft" in call("--from-run", tmp_path).stderr
    refused(
        call("--from-run", tmp_path, "--trace", trace(file, (2, 0), (0, 9), k=3)),
        "no cell to predict: the traces are of chain with K = 3",
    )


def test_traces_that_say_nothing_of_it_are_refused(tmp_path: Path) -> None:
    cost = ("--c", "0.5")
    refused(call("--trace", trace(tmp_path / "a", (2, None), (2, None)), *cost), "does not say what the draft guessed")
    refused(call("--trace", trace(tmp_path / "b", (2, 0)), *cost), "no round that is followed by another")
    two = ("--trace", trace(tmp_path / "c", (2, 0), (1, 0)), "--trace", trace(tmp_path / "d", (2, 0), (1, 0), k=3))
    refused(call(*two, *cost), "chain with K = 2, chain with K = 3: give those of one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "0.7"], "nothing to predict from"),
        (["--alpha", "0.7", "--c", "0.1", "--hit", "1.1"], "hit must lie in [0, 1]"),
        (["--alpha", "0.7", "--c", "0.1", "--v", "-1"], "v must be"),
        (["--alpha", "0.7", "--c", "0.1", "--c-hat", "1"], "leave out --c-hat"),
        (["--alpha", "0.7", "--c", "0.1", "--trace", "x"], "leave out --alpha and --k"),
        (["--c", "0.1", "--trace", "x", "--hit", "0.5"], "leave out --hit"),
        (["--c", "0.1", "--trace", "x"], "cannot read x"),
        (["--trace", "x"], "add --c and --v, or --from-run RUN"),
        (["--from-run", ".", "--v", "1"], "leave out --alpha"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str) -> None:
    refused(call(*arguments), message)


def test_without_parallel_its_options_are_refused() -> None:
    refused(CliRunner().invoke(app, ["--alpha", "0.7", "--c", "0.1", "--hit", "0.5"]), "add --parallel")


def refused(result: Result, message: str) -> None:
    assert isinstance(result.exception, UsageError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
