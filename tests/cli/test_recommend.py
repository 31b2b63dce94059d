"""`specbench recommend`: two runs, candidates with reasons, an answer, and words that deploy it."""

import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.audit.certificate import Audit
from specbench.backends.engines import arms
from specbench.jobs import recommend
from specbench.jobs.audit import Wanted
from specbench.jobs.output import Output
from specbench.jobs.recommend import (
    Setup,
    after_audits,
    candidates,
    choices,
    deploy,
    ends_of,
    fitting,
    load_of,
    most_promising,
    shown,
)
from specbench.jobs.run import Outcome
from specbench.judge.candidates import flaw
from specbench.judge.verdict import recommend as judged
from specbench.results.documents import About
from specbench.results.named_runs import read_csv
from specbench.results.statistics import Interval
from specbench.spec import RunSpec
from tests.judge.test_choice import row as scouted
from tests.support.direct import audited as made
from tests.support.direct import course
from tests.support.frontdoor import Command
from tests.support.tinypair import Pair, prompts

SHORT = ("--max-new-tokens", "6", "--warmup", "0", "--tier", "eager", "--k", "3")


def test_candidates_are_measured_at_the_largest_lookahead_and_those_that_could_win_again(
    command: Command, pair: Pair, tmp_path: Path
) -> None:
    data = prompts(tmp_path / "prompts.jsonl", 9, 14)
    given = ("--target", pair.target, "--draft", pair.draft, "--dataset", data, "--limit", "2")
    found = command("recommend", *given, *SHORT).ok()
    first, second = sorted((found.cwd / "results").iterdir(), key=lambda run: (run / "run.json").stat().st_mtime_ns)
    rows, again = read_csv(first / "results.csv"), read_csv(second / "results.csv")
    assert [(row["method"], row["k"]) for row in rows] == [("chain", "3"), ("prompt-lookup", "3")]
    assert 1 <= len(again) <= 2
    assert all(int(row["k"]) <= 3 for row in again)
    assert all(name in found.out for name in ("candidates", "predicted", "memory", "prompt-lookup", "deploy:"))
    assert any(word in found.out for word in ("YES", "NO", "UNCLEAR", "PROVISIONAL"))


def test_candidates_are_those_that_an_engine_has() -> None:
    assert candidates({}, "d") == {"method": ["chain", "prompt-lookup"], "k": 8}
    assert candidates({}, None)["method"] == ["prompt-lookup"]
    assert candidates({"method": ["chain"], "k": 4}, "d") == {"method": ["chain"], "k": 4}
    assert candidates({"backend": "vllm-serve"}, "d")["spec_config"] == ["draft-model", "ngram", "suffix"]
    assert candidates({"backend": "llama-server"}, None)["spec_config"] == ["ngram", "ngram-mod"]
    named = {"backend": "sglang", "spec_config": ["mtp"]}
    assert candidates(named, "d") == {**named, "k": 8}


@pytest.mark.parametrize("words", [{"spec_config": '{"method": "ngram"}'}, {"spec_args": "--spec-default"}])
def test_words_that_go_to_an_engine_have_their_own_k(words: dict[str, Any]) -> None:
    assert "k" not in candidates({"backend": "vllm-serve", **words}, None)
    assert candidates({"spec_config": "ngram", "spec_args": "--more"}, None)["k"] == 8


def row(method: str, k: int, speedup: float, spread: float = 0.05, **more: Any) -> dict[str, Any]:
    about = {"target": "demo", "draft": "demo-draft", "dataset": "code", "temperature": 0.0, "batch": 1, "prompts": 100,
             "limit": 100, "backend": "native"}  # fmt: skip
    bounds = {"speedup_low": speedup * (1 - spread), "speedup_high": speedup * (1 + spread)}
    return scouted(speedup, 2.0, [0.7] * k, k=k) | about | {"method": method} | bounds | more


def test_a_candidate_that_is_not_measured_again_says_why() -> None:
    failed = row("other", 4, 0.0, status="failed", error="it did not start")
    load = [row("chain", 4, 1.5), row("suffix", 4, 0.9), failed]
    (best, *_), measured = choices(load, [], {}), [row("chain", k, 1.4) for k in range(1, 5)]
    found = [*choices(load, measured, {})]
    first, second, third = found[0], found[1], found[-1]
    assert [one["K"] for one in found if one["candidate"] == "chain"] == [first["K"], *({1, 2, 3, 4} - {first["K"]})]
    assert (first["candidate"], first["measured"], first["note"]) == ("chain", 1.4, "")
    assert first["predicted"] == best["predicted"]
    assert second["measured"] is None
    assert "slower than chain" in second["note"] or "as fast as" in second["note"]
    assert (third["predicted"], "it did not start" in third["note"]) == (None, True)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (row("chain", 3, 1.4), "llama-server: --spec-type draft-simple -md DRAFT.gguf --spec-draft-n-max 3"),
        (
            row("chain", 3, 1.4, draft="JackFram/llama-68m"),
            "trtllm-serve --config FILE (1.4): speculative_config: "
            '{"decoding_type": "Draft_Target", "speculative_model": "JackFram/llama-68m", "max_draft_len": 3}',
        ),
        (
            row("chain", 3, 1.4, draft="llama-68m"),
            "vllm-serve: --speculative-config "
            """'{"method": "draft_model", "model": "JackFram/llama-68m", "num_speculative_tokens": 3}'""",
        ),
        (row("prompt-lookup", 3, 1.4), "sglang: --speculative-algorithm NGRAM --speculative-num-draft-tokens 4"),
        (
            row("prompt-lookup", 3, 1.4),
            "trtllm-serve --config FILE (1.4): speculative_config: "
            '{"decoding_type": "NGram", "max_matching_ngram_size": 5, "max_draft_len": 3}',
        ),
        (row("recycling", 3, 1.4), "no server that specbench knows has this method"),
        (row("chain", 3, 0.8), "the engine without a draft"),
        (row("chain", 3, 1.01), "once that is certain:"),
        (row("chain", 3, 0.99), "the engine without a draft"),
        (row("chain", 12, 1.4, schedule="auto"), "no server that specbench knows has this method"),
        (row("chain", 3, 1.4, backend="sglang", spec_args="--speculative-adaptive"), "sglang: --speculative-adaptive"),
        (
            row("chain", 3, 1.4, backend="vllm-serve", spec_config='{"method": "mtp"}'),
            'vllm-serve: --speculative-config \'{"method": "mtp"}\'',
        ),
        (
            row("chain", 3, 1.4, backend="llama-server", spec_config="ngram-mod", spec_args="-t 2"),
            "llama-server: --spec-type ngram-mod --spec-ngram-mod-n-min 0 --spec-ngram-mod-n-max 3 -t 2",
        ),
    ],
)
def test_the_answer_ends_with_words_that_deploy_it(cell: dict[str, Any], words: str) -> None:
    (answer,) = judged([cell])
    assert words in deploy(answer, [cell])


def test_a_served_arm_is_deployed_as_it_was_measured_and_by_batch() -> None:
    arm: dict[str, Any] = {"backend": "vllm-serve", "spec_config": "ngram"}
    rows = [row("chain", 4, 1.5, **arm), row("chain", 4, 0.8, batch=8, **arm), row("chain", 2, 1.2, batch=8, **arm)]
    rows.append(row("chain", 2, 1.3, **arm))
    answers = judged(rows)
    config, _, schedule = deploy(answers[0], rows)
    assert json.loads(config.partition("--speculative-config ")[2].strip("'"))["num_speculative_tokens"] == 4
    given = json.loads(schedule.partition("--speculative-config ")[2].strip("'"))
    assert given["num_speculative_tokens_per_batch_size"] == [[1, 7, 4], [8, 8, 2]]
    assert (given["method"], given["num_speculative_tokens"]) == ("ngram", 4)
    suffix = [one | {"spec_config": "suffix"} for one in rows]
    assert not [line for line in deploy(judged(suffix)[0], suffix) if "per_batch_size" in line], "vLLM would end"


def test_engines_that_are_not_started_here_get_their_own_words() -> None:
    found = arms.elsewhere(RunSpec(target="big", draft="small", k=3), "mtp")
    assert json.loads(found["trtllm-serve --config FILE (1.4)"].removeprefix("speculative_config: ")) == {
        "decoding_type": "MTP",
        "max_draft_len": 3,
    }
    assert '"num_nextn_predict_layers": 3' in found["trtllm-serve --config FILE (before 1.4)"]
    (words,) = shlex.split(found["NIM with vLLM"].removeprefix("NIM_PASSTHROUGH_ARGS="))
    option, config = shlex.split(words)
    assert (option, json.loads(config)) == ("--speculative-config", {"method": "mtp", "num_speculative_tokens": 3})
    assert arms.elsewhere(RunSpec(target="big", k=3), "ngram-mod") == {}


def test_a_served_arm_is_deployed_in_a_nim_of_its_engine_and_on_no_other() -> None:
    one = row("chain", 3, 1.4, backend="vllm-serve", spec_config="ngram")
    assert [line.partition(":")[0] for line in deploy(judged([one])[0], [one])] == ["vllm-serve", "NIM with vLLM"]


def test_values_have_their_bounds_and_what_is_the_same_for_all_is_left_out_on_a_screen() -> None:
    load = [row("chain", 4, 1.5), row("suffix", 4, 1.2)]
    costs = {(*load_of(load[0]), "suffix"): Interval(0.1, -0.02, 0.3)}
    (best, *_) = choices(load, [], costs)
    chain, suffix = choices(load, [row("chain", best["K"], 1.4)], costs)
    assert (chain["measured"], chain["measured_low"], chain["regret"]) == (1.4, pytest.approx(1.33), None)
    assert (suffix["regret"], suffix["regret_high"]) == (0.1, 0.3)
    assert chain["predicted_low"] < chain["predicted"] < chain["predicted_high"]
    first, second = shown([{**one, "memory": ""} for one in (chain, suffix)])
    assert list(first) == ["candidate", "K", "predicted", "measured", "note"]
    assert (first["measured"], second["measured"]) == ("1.400 [1.330, 1.470]", "")


def scouted_cells(cells: list[RunSpec], rows: list[dict[str, Any]], seconds: dict[int, float]) -> Outcome:
    """A first run of these cells with two samples each; seconds: of a prompt without a draft, by batch."""
    traces = [[SimpleNamespace(seconds=seconds[one.batch], prefill_seconds=0.0)] * 2 for one in cells]
    found: Any = [
        SimpleNamespace(spec=cell.with_(limit=8), row=lambda one=one: dict(one),
                        samples=[SimpleNamespace(prompt=n, baseline=one, method=one) for n, one in enumerate(pair)])
        for cell, one, pair in zip(cells, rows, traces, strict=True)
    ]  # fmt: skip
    return Outcome(Path(), About(), found[::-1], None)  # in another order, as cells that are left out come first


def test_every_load_measures_its_own_candidates_on_as_many_prompts_as_fit() -> None:
    plain = RunSpec(target="big", draft="small", dataset="code", temperature=0.0)
    cells = [plain.with_(method=name, k=4, batch=batch) for batch in (1, 8) for name in ("chain", "suffix")]
    speedups = [1.5, 0.9, 0.8, 1.3]
    rows = [row(one.method, 4, speedup, 0.01, batch=one.batch) for one, speedup in zip(cells, speedups, strict=True)]
    first = scouted_cells(cells, rows, {1: 2.0, 8: 0.25})
    quiet = Setup(1, Output(quiet=True))
    again = most_promising(cells, first, [rows[:2], rows[2:]], quiet)
    assert [(one.method, one.batch, one.limit) for one in again] == [("chain", 1, None)] * 3 + [("suffix", 8, None)] * 2
    quarter, half, best = (one.k for one in again[:3])  # the best K, that of at most half of it, and of half of that
    assert (quarter, half, best) == (1, 2, 4)
    assert again[3].k <= again[4].k // 2 < 2, "there is no half of 1"
    alone, *_, loaded = fitting(again, first, 20, 10)
    assert alone.limit == 26  # (0.75 · 600 − 20 − 6.5 that were not decoding) ÷ 2 loads ÷ 2 seconds of 4 arms
    assert loaded.limit == 282
    assert fitting([one.with_(limit=5) for one in again], first, 20, 10)[0].limit == 5
    limits = lambda scouts, spent: {one.batch: one.limit for one in fitting(again, scouts, spent, 0.1)}  # noqa: E731
    assert limits(first, 20) == {1: 7, 8: 40}  # a minute; five turns of eight
    quick, slow = (scouted_cells(cells, rows, {1: seconds, 8: seconds}) for seconds in (0.2, 20))
    assert limits(quick, 200) == {1: 20, 8: 40}  # enough for a verdict
    assert limits(slow, 200) == {1: 4, 8: 40}


def test_the_load_from_which_it_does_not_pay_is_named() -> None:
    rows = [row("chain", 3, speedup, batch=batch) for batch, speedup in ((1, 1.4), (8, 1.2), (32, 0.8))]
    assert ends_of(judged(rows)) == [
        "by requests in flight, speculation pays at 1, 8, does not pay at 32: from 32 on it is not certain that it pays"
    ]
    failed = [{**one, "status": "failed", "error": "it fails the audit"} for one in rows]
    assert ends_of(judged(failed)) == []


def test_a_server_is_given_its_own_arms(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(recommend, "start_recommend", lambda cells, setup: seen.extend([*cells, setup.output]))
    given = ("--target", "gpt2", "--backend", "llama-server", "--concurrency", "1,2", "--dataset", "code")
    command("recommend", *given, "--output-dir", "there", "--format", "csv").ok()
    output = seen.pop()
    assert (output.parent, output.style) == (Path("there"), "csv")
    assert [(one.spec_config, one.batch) for one in seen] == [(n, b) for b in (1, 2) for n in ("ngram", "ngram-mod")]


def test_what_drafts_nothing_is_refused(command: Command) -> None:
    for words in ("--method baseline", "--backend openai --url http://localhost:1 --method chain"):
        command("recommend", *words.split()).refused("recommend compares drafts")


def test_a_draft_that_fails_its_audit_is_not_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"chain": row("chain", 3, 1.4), "suffix": row("suffix", 3, 1.2)}
    cells = [
        SimpleNamespace(row=lambda one=one: dict(one), spec=RunSpec(method=name, k=3)) for name, one in rows.items()
    ]
    seen = list[Any]()

    def audited(wanted: Wanted, output: Output) -> tuple[Audit, Path]:
        seen.append((wanted.settings["method"], "limit" in wanted.settings))
        return made(course("padded-rows" if seen[-1][0] == "chain" else None, share=0.1)), tmp_path

    monkeypatch.setattr(recommend, "audited", audited)
    found, lines = after_audits(Outcome(tmp_path, About(), cells, None), 0, Setup(1, Output(quiet=True)))  # type: ignore[arg-type]
    assert seen == [("chain", False), ("suffix", False)]
    assert ["fails the audit" in flaw(one) for one in found] == [True, False]
    assert [("NOT LOSSLESS" in line, name in line) for name, line in zip(rows, lines, strict=True)] == [
        (True, True),
        (False, True),
    ]
    (answer,) = judged(found)
    assert answer.best == "suffix (K = 3)"


def test_a_recommendation_goes_on_where_it_was_interrupted(command: Command, pair: Pair, tmp_path: Path) -> None:
    data = prompts(tmp_path / "prompts.jsonl", 9, 14)
    given = ("--target", pair.target, "--draft", pair.draft, "--dataset", data, "--limit", "2", *SHORT)
    assert command("recommend", *given).code == 0
    folder = tmp_path / "results"
    first, second = sorted(folder.glob("*Z_target_draft_*"), key=lambda run: (run / "run.json").stat().st_mtime_ns)
    assert command("recommend", *given, "--resume", first).code == 0
    assert {*folder.glob("*Z_target_draft_*")} == {first, second}
    shutil.rmtree(second)
    assert command("recommend", *given, "--resume", first).code == 0
    assert len([*folder.glob("*Z_target_draft_*")]) == 2
    refused = command("recommend", *given, "--temperature", "1", "--resume", first)
    assert (refused.code, "not the first run of this command" in refused.line) == (2, True)
