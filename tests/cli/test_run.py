"""`specbench run` through its front door: whole runs of a tiny pair, their settings, and what they leave behind."""

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from specbench.decoding import loop
from tests.support.frontdoor import Command
from tests.support.tinypair import CONTEXT, Pair, prompts

# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.mark.processor
def test_a_run_leaves_a_table_on_stdout_and_its_folder_on_disk_which_says_how_to_run_it_again(
    run: Command, pair: Pair
) -> None:
    found = run("--seed", 5)
    row = found.row()
    assert "speedup" in found.out
    assert {p.name for p in found.folder.iterdir()} == {
        "run.json", "journal.jsonl", "results.csv", "summary.csv", "samples.csv", "rounds.parquet", ".lock",
    }  # fmt: skip
    assert found.folder.name.split("_")[1:3] == ["target", "draft"]
    assert found.err.splitlines()[-1] == f"results: results/{found.folder.name}"
    described = json.loads((found.folder / "run.json").read_text())
    assert described["command"].startswith("specbench run --target")
    assert described["specs"][0]["seed"] == 5
    assert described["environment"]["torch"] == torch.__version__
    assert (row["status"], row["prompts"], row["lossless"], row["k"]) == ("ok", "2", "identical", "3")
    assert (row["target_source"], row["dtype_resolved"], row["device"]) == (str(pair.target), "float32", "auto")
    assert 0 < float(row["alpha"]) < 1
    assert all(float(row[name]) > 0 for name in ("speedup", "speedup_calibrated", "c", "v", "tokens_per_second"))
    assert int(row["tokens"]) == int(row["baseline_tokens"]) <= 16


def test_samples_rounds_and_journal_tell_the_same_story(run: Command) -> None:
    found = run("--repeat", 2)
    (row,), samples = found.table(), found.table("samples.csv")
    rounds = pd.read_parquet(found.folder / "rounds.parquet")
    assert len(samples) == len(found.samples()) == 4
    assert sum(int(s["tokens"]) for s in samples) == rounds["emitted"].sum() == int(row["tokens"])
    assert rounds["accepted"].sum() == int(row["accepted"])
    ended = found.journal()[-1]["end"]
    assert (ended["cell"], ended["status"], ended["error"]) == (row["cell"], "ok", "")


def test_two_prompts_are_no_answer_and_the_command_that_gives_one_is_told(run: Command, command: Command) -> None:
    found = run("--output-dir", "my results")
    (folder,) = (found.cwd / "my results").iterdir()
    anew = "specbench run --target .* --max-new-tokens 8 --warmup 0 --k 3 --output-dir 'my results' --limit 20"
    grown = f"specbench run --resume '{folder.relative_to(found.cwd)}' --limit 20"
    promise, said = "next, to (settle it|measure again)", found.out.splitlines()
    assert re.match("(PROVISIONAL, leaning (YES|NO)|UNCLEAR)[.] With K = 3, ", said[0])
    assert said[1].startswith("  Why: a round emits ")
    assert said[2] == "  Lossless: yes (2 of 2 outputs identical)"
    assert said[3].startswith("  Not certain yet: only 2 prompts (20 needed)")
    assert re.match(
        f"{promise}( on a quiet machine: {anew}|: {grown})$", said[4]
    )  # whatever else the machine was doing
    assert command("verdict", folder.relative_to(found.cwd)).out.splitlines() == said[:5]


def test_a_run_on_a_busy_machine_says_so_before_its_answer_does(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    found = run()
    (said,) = (line for line in found.err.splitlines() if line.startswith("load 99.0 on "))
    assert re.search("results will be PROVISIONAL; (stop them|wait for a quiet machine), or go on$", said)
    assert found.err.index(said) < found.err.index(": ok, 2 samples"), "before anything was measured"
    assert "the machine was busy with other programs (load 99)" in found.out
    assert "PROVISIONAL" not in run("-q").err


def test_markdown_is_the_answer_and_a_table_and_a_data_set_that_is_too_small_is_no_way_out(run: Command) -> None:
    found = run("--limit", 20, "--format", "md").out
    assert re.match(r"\*\*(PROVISIONAL|UNCLEAR).*\. With .*\*\*$", found.splitlines()[0])
    few = "the data set has only 3 prompts; use one with at least 20"
    assert re.search(f"^- next: (settle it|measure again).*: {few}$", found, re.M)
    head = "\n| method | K | tokens/s: base → spec. | speedup | 95 % interval | tokens / pass | accept rate |\n"
    assert head in found


def test_the_same_command_decodes_the_same_tokens(run: Command) -> None:
    sampling = ("--temperature", "1.0", "--ignore-eos", "--seed", "3")
    outputs = []
    for _ in range(2):
        found = run(*sampling)
        outputs.append([sample.method.tokens for sample in found.samples()])
        shutil.rmtree(found.cwd / "results")
    assert outputs[0] == outputs[1]
    assert [len(tokens) for tokens in outputs[0]] == [8, 8]


@pytest.mark.parametrize(
    ("style", "parse"),
    [
        ("csv", lambda text: next(csv.DictReader(io.StringIO(text)))),
        ("json", lambda text: json.loads(text)["cells"][0]),
        ("jsonl", lambda text: json.loads(text.splitlines()[0])),
    ],
)
def test_every_format_holds_what_lies_on_disk(run: Command, style: str, parse: Callable[[str], dict[str, str]]) -> None:
    found = run("--format", style, "-q")
    row = parse(found.out)
    assert float(row["speedup"]) == float(found.table()[0]["speedup"])
    assert found.err == ""


def test_quiet_prints_nothing_but_the_result_and_verbose_settings_and_environment(run: Command) -> None:
    found = run("--quiet")
    assert (found.code, found.err, "speedup" in found.out) == (0, "", True)
    shutil.rmtree(found.cwd / "results")
    found = run("-v")
    assert '"max_new_tokens": 8' in found.err
    assert '"python": ' in found.err
    assert '"python": ' not in found.out


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.processor
@pytest.mark.parametrize("words", [("baseline",), ("baseline", "--k", 0), ("token-match",), ("chain",)])
def test_every_method_decodes_what_the_baseline_decodes(run: Command, words: tuple[object, ...]) -> None:
    row = run("--method", *words).row()
    assert (row["method"], row["lossless"], row["prompts_identical"]) == (words[0], "identical", "2")
    assert (int(row["drafted"]) > 0) == (words[0] != "baseline")


@pytest.mark.parametrize(
    "method", ["chain", "block", "tree-top", "cascade-vertical", "prompt-lookup", "suffix", "jacobi"]
)
def test_no_round_drafts_more_than_a_text_may_have(run: Command, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = []
    count = loop.count
    monkeypatch.setattr(
        loop, "count", lambda draft, *rest: drafted.append(draft.tree.topology.depth) or count(draft, *rest)
    )
    row = run("--k", 24, "--max-new-tokens", 4, "--method", method, "--warmup", 1).row()
    assert (row["k"], row["lossless"], row["status"]) == ("24", "identical", "ok")
    assert row["engine_notes"].endswith("a round drafts 4 tokens, as many as a text may have")
    assert max(drafted) <= 4


def test_sampling_with_every_warper(run: Command) -> None:
    law = ("--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--eta", "0.001")
    (row,) = run(*law).table()
    assert [row[n] for n in ("temperature", "top_k", "top_p", "min_p", "eta")] == ["0.8", "20", "0.9", "0.01", "0.001"]
    assert (row["status"], row["lossless"]) == ("ok", "not compared")


@pytest.mark.parametrize(("words", "dtype"), [((), "float64"), (("--draft-dtype", "float32"), "float32")])
def test_the_draft_has_the_targets_dtype_or_one_of_its_own(run: Command, words: tuple[str, ...], dtype: str) -> None:
    (row,) = run("--dtype", "float64", *words).table()
    assert (row["dtype_resolved"], row["draft_dtype_resolved"]) == ("float64", dtype)


def test_two_data_sets_are_two_cells_one_given_twice_is_one_and_a_list_with_commas_as_many(
    run: Command, tmp_path: Path
) -> None:
    other = prompts(tmp_path / "other.jsonl", 3, 3)
    found = run("--dataset", other, "--dataset", other)
    assert [row["dataset"].rsplit("/", 1)[-1] for row in found.table()] == ["words.jsonl", "other.jsonl"]
    shutil.rmtree(found.cwd / "results")
    sets = ",".join((prompts(tmp_path / "one.jsonl", 3, 3), other))
    rows = run("--k", "1,2", "--temperature", "0,1", data=sets).table()
    cells = {(Path(row["dataset"]).name, row["k"], float(row["temperature"])) for row in rows}
    assert cells == {(f"{name}.jsonl", k, t) for name in ("one", "other") for k in "12" for t in (0.0, 1.0)}


def test_a_config_file_has_the_same_keys_and_the_command_line_wins(
    command: Command, pair: Pair, tmp_path: Path
) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    (tmp_path / "run.yaml").write_text(
        f"target: {pair.target}\ndraft: {pair.draft}\ndataset: {data}\nk: 2\nmax-new-tokens: 5\nwarmup: 0\nlimit: 2\n"
        "output-dir: elsewhere\nformat: json\nignore_eos: true\n"
    )
    found = command("run", "--config", tmp_path / "run.yaml", "--k", 3, "--limit", 1)
    (row,) = json.loads(found.out)["cells"]
    assert (row["k"], row["limit"], row["max_new_tokens"], row["tokens"]) == (3, 1, 5, 5)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_prompts_that_are_too_long_are_left_out_and_counted(run: Command, tmp_path: Path) -> None:
    fits = CONTEXT - 8 - 3 - 1
    found = run("--limit", 3, data=prompts(tmp_path / "long.jsonl", 4, fits, fits + 1))
    assert found.table()[0]["rejected"] == "1 too long"
    assert [s["prompt_tokens"] for s in found.table("samples.csv")] == ["4", str(fits)]
    assert "left out 1 too long" in found.out
