"""Other engines on the command line: their rows beside ours, what is said of them, and what is refused."""

from specbench.models.execution.few_rows import pays
from specbench.models.network import packed
from tests.support.frontdoor import Command

ENGINES = ["native", "transformers"]


def test_both_engines_measure_the_same_cells(run: Command) -> None:
    found = run("--backend", "native,transformers", "--dtype", "float32", "--ignore-eos").ok()
    ours, theirs = rows = found.table()
    assert [row["engine"] for row in rows] == ENGINES
    assert [row["lossless"] for row in rows] == ["identical"] * 2
    for name in ("prompts_sha256", "dtype_resolved", "threads", "alpha", "tokens_per_round", "accepted", "tested"):
        assert ours[name] == theirs[name], name
    said = packed.NOTE if pays() else ""
    assert (ours["engine_notes"], "alpha is accepted ÷ tested" in theirs["engine_notes"]) == (said, True)
    samples = found.samples()
    assert [s.method.tokens for s in samples[:2]] == [s.method.tokens for s in samples[2:]]
    assert "engines · " in found.out
    assert "(transformers). With K = 3" in found.out
    assert "note: tier eager: transformers " in found.err


def test_a_sweep_takes_an_engine(command: Command, pair, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from tests.support.tinypair import prompts

    data = prompts(tmp_path / "words.jsonl", 4, 6)
    short = ("--limit", "2", "--max-new-tokens", "8", "--warmup", "0")
    found = command("sweep-k", *pair.options, "--dataset", data, *short, "--k", "1,3", "--backend", "transformers").ok()
    assert [(row["engine"], row["k"]) for row in found.table()] == [("transformers", "1"), ("transformers", "3")]


def test_a_cell_that_one_engine_cannot_measure_leaves_the_other(run: Command) -> None:
    found = run("--backend", "native,transformers", "--method", "tree-top")
    assert found.code == 6
    assert [(row["backend"], row["status"]) for row in found.table()] == [("", "ok"), ("transformers", "error")]
