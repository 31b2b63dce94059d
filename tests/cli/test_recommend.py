"""`specbench recommend`: two runs, candidates with reasons, an answer, and words that deploy it."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.audit.certificate import Audit
from specbench.jobs import recommend
from specbench.jobs.audit import Wanted
from specbench.jobs.output import Output
from specbench.jobs.recommend import Setup, after_audits, candidates, choices, deploy
from specbench.jobs.run import Outcome
from specbench.judge.candidates import flaw
from specbench.judge.verdict import recommend as judged
from specbench.results.documents import About
from specbench.results.named_runs import read_csv
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
    assert [(row["method"], row["k"]) for row in rows] == [("chain", "3"), ("prompt-lookup", "3"), ("suffix", "3")]
    assert 1 <= len(again) <= 3
    assert all(int(row["k"]) <= 3 for row in again)
    assert all(name in found.out for name in ("candidates", "predicted", "memory", "prompt-lookup", "deploy:"))
    assert any(word in found.out for word in ("YES", "NO", "UNCLEAR", "PROVISIONAL"))


def test_candidates_are_those_that_an_engine_has() -> None:
    assert candidates({}, "d") == {"method": ["chain", "prompt-lookup", "suffix"]}
    assert candidates({}, None) == {"method": ["prompt-lookup", "suffix"]}
    assert candidates({"method": ["chain"]}, "d") == {"method": ["chain"]}
    assert candidates({"backend": "vllm-serve"}, "d")["spec_config"] == ["draft-model", "ngram", "suffix"]
    assert candidates({"backend": "llama-server"}, None)["spec_config"] == ["ngram", "ngram-mod"]
    assert candidates({"backend": "sglang", "spec_config": ["mtp"]}, "d")["spec_config"] == ["mtp"]


def row(method: str, k: int, speedup: float, spread: float = 0.05, **more: Any) -> dict[str, Any]:
    about = {"target": "big", "draft": "small", "dataset": "code", "temperature": 0.0, "batch": 1, "prompts": 100,
             "limit": 100, "backend": "native"}  # fmt: skip
    bounds = {"speedup_low": speedup * (1 - spread), "speedup_high": speedup * (1 + spread)}
    return scouted(speedup, 2.0, [0.7] * k, k=k) | about | {"method": method} | bounds | more


def test_a_candidate_that_is_not_measured_again_says_why() -> None:
    failed = row("other", 4, 0.0, status="failed", error="it did not start")
    load = [row("chain", 4, 1.5), row("suffix", 4, 0.9), failed]
    (best, *_), measured = choices(load, []), [row("chain", k, 1.4) for k in range(1, 5)]
    first, second, third = choices(load, measured)
    assert (first["candidate"], first["measured"], first["note"]) == ("chain", 1.4, "")
    assert first["predicted"] == best["predicted"]
    assert second["measured"] is None
    assert "slower than chain" in second["note"] or "as fast as" in second["note"]
    assert (third["predicted"], "it did not start" in third["note"]) == (None, True)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (row("chain", 3, 1.4), "llama-server: --spec-type draft-simple -md small --spec-draft-n-max 3"),
        (row("prompt-lookup", 3, 1.4), "sglang: --speculative-algorithm NGRAM --speculative-num-draft-tokens 4"),
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
    arm = {"backend": "vllm-serve", "spec_config": "ngram"}
    rows = [row("chain", 4, 1.5, **arm), row("chain", 4, 0.8, batch=8, **arm), row("chain", 2, 1.2, batch=8, **arm)]
    rows.append(row("chain", 2, 1.3, **arm))
    answers = judged(rows)
    config, schedule = deploy(answers[0], rows)
    assert json.loads(config.partition("--speculative-config ")[2].strip("'"))["num_speculative_tokens"] == 4
    assert json.loads(schedule.partition("once: ")[2])["num_speculative_tokens_per_batch_size"] == [
        [1, 7, 4],
        [8, 8, 2],
    ]


def test_a_server_is_given_its_own_arms(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(recommend, "start_recommend", lambda cells, *_: seen.extend(cells))
    given = ("--target", "gpt2", "--backend", "llama-server", "--concurrency", "1,2", "--dataset", "code")
    command("recommend", *given).ok()
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
