"""Whole audits of toy servers: every fault is found and named, and a server without one is not accused."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.audit.cells import Cell
from specbench.audit.certificate import (
    LOSSLESS,
    NUMERIC,
    OPEN,
    SHIFT,
    Audit,
    audit_json,
    headline,
    page,
    power,
    sentences,
)
from specbench.audit.course import Bounds, Course, Trial
from specbench.audit.findings import BELOW, expected_of, unlike_lengths
from specbench.audit.local import Agreement
from specbench.audit.probes import Ask, Reply, ServerProbe
from specbench.backends.choose import backend_for
from specbench.backends.engines import client, install
from specbench.backends.engines.started import Started
from specbench.errors import InterruptedRunError, NotLosslessError, ServerError, UsageError
from specbench.jobs.audit import answers, judged, scored, show
from specbench.jobs.output import Output
from specbench.results.documents import LOSSY, failed_audits, fault_of
from specbench.spec import BASELINE, RunSpec
from tests.show.test_report_page import HOSTILE, check_harmless, page_of
from tests.support import faulty_server
from tests.support.direct import Direct, audited, course
from tests.support.faulty_server import NAME, Server, serving
from tests.support.frontdoor import Command
from tests.support.server_faults import FAULTS
from tests.support.tinypair import Pair
from tests.support.toy_engine import EOS

# The kind, what is found, and the words of its likely cause
FOUND: dict[str, tuple[str, str, str]] = {
    "padded-rows": ("fault", "another token", "padded to 1 + K"),
    "block-boundary": ("fault", "another token", "fills 16 tokens"),
    "warm-prefix": ("fault", "another token", "a prefix from the cache"),
    "truncated": ("fault", "another prompt", "different prompts"),
    "chunked-prefill": ("fault", "another token", "chunks of a long prompt"),
    "state-column": ("fault", "another token", ""),
    "corrupt-5": ("fault", "another token", ""),
    "drift": ("draft", "acceptance falls", "becomes worse"),
    "late-stop": ("fault", "text after its end", "beyond an end"),
    "after-eos": ("fault", "another token", "an end within an accepted run"),
    "length-first": ("fault", "text after its end", "beyond an end"),
    "too-long": ("fault", "too long", "beyond max_tokens"),
    "too-short": ("fault", "too short", "counted twice"),
    "lost-brace": ("fault", "form", "grammar or tool parser"),
    "argmax": ("fault", "another distribution", "best token at every temperature"),
    "cooler": ("fault", "another distribution", "another temperature"),
    "min-p-on-bonus": ("fault", "another distribution", "min-p"),
    "unfiltered": ("fault", "another distribution", "top-k"),
    "stale-penalties": ("fault", "another distribution", "penalties of the start of a round"),
    "bias-on-bonus": ("fault", "another distribution", "the bias"),
    "seed-42": ("fault", "equal samples", "seeds are not used"),
    "generous": ("fault", "another distribution", "a lossy rule of acceptance"),
    "residual": ("fault", "another distribution", "a lossy rule of acceptance"),
    "uninitialised": ("fault", "another distribution", "first tokens that the target hardly ever gives"),
    "garbage": ("fault", "another distribution", "memory without values"),
    "wrong-head": ("draft", "drafts are not accepted", "a wrong draft or head"),
    "no-draft": ("draft", "no draft", "speculation is off"),
    "zero-logprobs": ("report", "log-probabilities", "drafted tokens"),
    "usage": ("report", "usage", "counted twice"),
}
QUICK = ("padded-rows", "late-stop", "argmax", "min-p-on-bonus", "wrong-head", "zero-logprobs")
WHOLE = ("corrupt-5", "after-eos", "drift", "cooler", "stale-penalties", "seed-42")  # they need a whole audit
RARE = {"corrupt-0.5", "corrupt-2"}  # they need more requests than an audit sends: tests/benchmarks/audits


def shows(made: Audit, name: str) -> bool:
    kind, what, cause = FOUND[name]
    return any((one.kind, one.what) == (kind, what) and cause in one.cause for one in made.findings)


def test_every_fault_is_expected_here() -> None:
    assert {*FOUND, *RARE} == set(FAULTS)


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_found_with_few_requests(name: str) -> None:
    made = audited(course(name, noise=1e-6, share=0.25, refuses=False))
    assert shows(made, name), sentences(made)
    assert made.answer == (LOSSY if FOUND[name][0] == "fault" else made.answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FOUND if name not in QUICK])
def test_a_fault_is_found(name: str) -> None:
    made = audited(course(name, noise=1e-6, share=1.0 if name in WHOLE else 0.3, refuses=False))
    assert shows(made, name), sentences(made)
    assert (made.answer == LOSSY) == any(one.kind == "fault" for one in made.findings)


def test_a_server_without_a_fault_is_lossless_as_far_as_seen() -> None:
    made = audited(course(share=0.25))
    assert made.answer == LOSSLESS, sentences(made)
    assert made.missed == 3 / made.requests
    refused = {one.cell: one.detail for one in made.findings if one.kind == "not tried"}
    assert set(refused) == {"min-p 0.1", "logit bias"}
    assert all("not yet supported with speculative decoding" in detail for detail in refused.values())


@pytest.mark.parametrize(
    ("tokens", "finish", "words"),
    [
        (20, "length", ""),
        (12, "length", "tokens of an answer: 12 on average, and 20 on the baseline"),
        (20, "stop", "answers that end before their limit: 1 on average, and 0 on the baseline"),
    ],
)
def test_without_log_probabilities_lengths_and_ends_are_compared(tokens: int, finish: str, words: str) -> None:
    baseline, other = (Reply((), "", end, many) for end, many in (("length", 20), (finish, tokens)))
    found = unlike_lengths(Cell("temperature 1", "", ()), [Trial(Ask(), baseline, other)] * 40)
    assert [one.detail for one in found] == [words] * bool(words)
    assert not unlike_lengths(Cell("temperature 1", "", ()), [Trial(Ask(), baseline, other)] * 4), "four are too few"


class LikeLlama(ServerProbe):
    """A server that forbids ends by a bias, and whose penalties count the last 64 tokens, as llama.cpp's do."""

    window = 64  # type: ignore[assignment]

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        path, body = super().request(ask)
        bias = {**(body.get("logit_bias") or {}), **({str(EOS): -100.0} if body["ignore_eos"] else {})}
        return path, {**body, "logit_bias": bias, "repeat_last_n": 64}

    def banned(self) -> frozenset[int]:
        return frozenset({EOS})


class Unaware(LikeLlama):
    """The same, for an audit that does not know it."""

    window = 0  # type: ignore[assignment]

    def banned(self) -> frozenset[int]:
        return frozenset()


@pytest.mark.parametrize("kind", [LikeLlama, Unaware])
def test_what_a_server_forbids_and_counts_is_in_the_distribution_of_its_tokens(kind: type[ServerProbe]) -> None:
    one: Any = course(share=0.6, refuses=False)
    one.baseline, one.audited = (kind(probe.client, NAME) for probe in (one.baseline, one.audited))
    doubts = [found.cell for found in audited(one).findings if "do not follow its log-probabilities" in found.detail]
    assert bool(doubts) is (kind is Unaware)


def test_an_audit_that_ended_before_sampling_does_not_speak_of_samples() -> None:
    made = audited(course(share=0.1))
    assert headline(made)[0].endswith("and sampled ones follow the baseline's distribution")
    assert headline(replace(made, tests=[]))[0].endswith("and no sampled ones were tested")


def test_rounding_is_no_fault() -> None:
    made = audited(course(noise=0.02, share=0.25))
    assert made.answer in (NUMERIC, LOSSLESS), sentences(made)
    assert made.floors.nats > 0.01
    assert made.floors.repeated > made.floors.again >= 0
    assert any(line.startswith("requested again, the baseline changed ") for line in headline(made))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.03])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_false_alarm(noise: float, seed: int) -> None:
    made = audited(course(noise=noise, seed=seed, refuses=False))
    assert not made.faults, sentences(made)


class Mute(ServerProbe):
    """A server of an engine without log-probabilities and token ids."""

    @property
    def scores(self) -> bool:
        return False

    def complete(self, ask: Ask) -> Reply:
        found = super().complete(ask)
        return Reply(**{**vars(found), "ids": ()})


def test_without_log_probabilities_nothing_is_proven() -> None:
    one = course(noise=0.02, share=0.25)
    one.baseline, one.audited = (Mute(arm.client, arm.model) for arm in (one.baseline, one.audited))  # type: ignore[attr-defined]
    made = audited(one)
    assert made.answer == OPEN
    assert not any(one.kind == "fault" for one in made.findings)


# --- the course -------------------------------------------------------------------------------------------------------


def test_an_audit_goes_on_where_it_ended() -> None:
    whole = course(share=0.1)
    first = audited(whole)
    entries: dict[str, Any] = dict(list(whole.known.items())[: len(whole.known) // 2])
    rest = course(share=0.1)
    rest.known.update(json.loads(json.dumps(entries)))
    sent = []
    rest.keep = lambda entry: sent.append(entry)
    assert audited(rest).findings == first.findings
    assert len(sent) == len(whole.known) - len(entries)


def test_the_bound_of_requests_adds_requests_under_load() -> None:
    one = course(share=0.1, bounds=Bounds(requests=150))
    found = list(one.trials())
    assert sum(len(trials) for _, trials in found) == 150
    assert found[-1][0].name == "concurrent"
    assert len({trial.ask.prompt for _, trials in found[-4:] for trial in trials}) > 20


@pytest.mark.parametrize("prompt", [(1, 2, 3), (5, 9, 4, 7)])
def test_the_accepted_tokens_are_those_that_the_draft_model_agrees_with(pair: Pair, prompt: tuple[int, ...]) -> None:
    common = {"tier": "eager", "dtype": "float32", "max_new_tokens": 24, "ignore_eos": True}
    spec = RunSpec(target=str(pair.target), draft=str(pair.draft), method="chain", k=3, **common)
    backend = backend_for([spec.baseline, spec])
    backend.load(64)
    (trace,) = backend.prepare(spec, 8)([list(prompt)], [0])
    agrees = Agreement(RunSpec(target=str(pair.draft), method=BASELINE, k=0, **common))(prompt, trace.tokens)
    assert any(agrees)
    assert not all(agrees)
    accepted, drafted = expected_of(agrees, 3)
    assert accepted == sum(one.accepted for one in trace.rounds)
    assert abs(drafted - sum(one.drafted for one in trace.rounds)) <= 3, "the first round may be that of the prompt"


@pytest.mark.parametrize(("share", "found"), [(1.0, True), (0.3, False)])
def test_a_draft_that_is_accepted_less_than_it_agrees_is_reported(share: float, found: bool) -> None:
    one = course(share=0.1)
    one.agrees = lambda prompt, output: [at % 10 < 10 * share for at in range(len(output))]
    made = [finding for finding in audited(one).findings if finding.what == BELOW]
    assert bool(made) == found
    for finding in made:
        assert "the draft model itself agrees with 96%" in finding.detail
        assert "cache of the draft" in finding.cause


def test_the_time_of_an_audit_holds_its_scores() -> None:
    one = course(share=0.1)
    found, left = answers(one)
    assert not left
    known = len(one.known)
    scored(one, found)
    assert len(one.known) == known, "nothing is left to score"
    assert one.sent == 2 * sum(len(trials) for _, trials in found)


def test_the_end_of_its_time_keeps_what_is_known() -> None:
    ticks = iter(range(1 << 20))
    found = list(course(share=0.1, bounds=Bounds(until=30, clock=lambda: next(ticks))).trials())
    assert 0 < sum(len(trials) for _, trials in found) < 30


def test_a_lost_server_ends_the_audit_and_keeps_its_answers() -> None:
    one, kept = course(share=0.1), dict[str, Any]()
    one.keep = kept.update
    calls = iter(range(1 << 20))

    def dying(path: str, body: Any) -> tuple[int, Any]:
        if next(calls) > 20:
            raise ServerError("http://toy: the connection was lost")
        return Direct.post(one.audited.client, path, body)  # type: ignore[attr-defined]

    one.audited.client.post = dying  # type: ignore[attr-defined]
    with pytest.raises(ServerError, match="connection was lost"):
        list(one.trials())
    assert len(kept) > 20


def test_requests_that_only_the_audited_server_fails_are_reported() -> None:
    one = course(share=0.1)

    def failing(path: str, body: Any) -> tuple[int, Any]:
        if body.get("top_k", 0) > 0:
            return 500, {"error": {"message": "EngineCore encountered an issue."}}
        return Direct.post(one.audited.client, path, body)  # type: ignore[attr-defined]

    one.audited.client.post = failing  # type: ignore[attr-defined]
    made = audited(one)
    (found,) = [finding for finding in made.findings if finding.what == "server error"]
    assert (found.kind, found.cell, found.faulty) == ("report", "top-k 10", found.of)
    assert "500 EngineCore encountered an issue., and the baseline answered" in found.detail
    assert any("verification fails with these sampling fields" in line for line in sentences(made))


def test_a_server_that_dies_leaves_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for fault, error, said in ((None, ServerError, "--resume"), ("padded-rows", NotLosslessError, "fault")):
        one, calls = course(fault, share=0.1), iter(range(1 << 20))

        def dying(path: str, body: Any, one: Any = one, calls: Any = calls) -> tuple[int, Any]:
            if next(calls) > 30:
                raise ServerError("http://toy: the connection was lost")
            return Direct.post(one.audited.client, path, body)

        one.audited.client.post = dying  # type: ignore[attr-defined]
        found, left = answers(one)
        made = judged(one, found, left, "2026", {}, {}, 1.0, 2.0)
        assert made.requests > 0
        with pytest.raises(error, match=said):
            show(made, tmp_path, Output())
        shown = capsys.readouterr()
        assert "the audit ended early: http://toy: the connection was lost, in the part " in " ".join(shown.out.split())
        assert ("--resume" in shown.err) == (fault is not None)


def losing(one: Course, scores: int, error: BaseException) -> None:
    """Let the baseline be lost after so many requests for log-probabilities."""
    client, left = one.baseline.client, iter(range(scores))  # type: ignore[attr-defined]

    def dying(path: str, body: Any) -> tuple[int, Any]:
        if {"prompt_logprobs", "logprobs"} & body.keys() and next(left, None) is None:
            raise error
        return Direct.post(client, path, body)

    client.post = dying


GONE = ServerError("http://toy: the connection was lost")


@pytest.mark.parametrize("scores", [0, 5, 10, 20])
def test_a_baseline_that_is_lost_while_it_judges_leaves_what_was_judged(scores: int) -> None:
    whole, one = audited(course(noise=0.02, share=0.1)), course(noise=0.02, share=0.1)
    losing(one, scores, GONE)
    made = audited(one)
    assert (made.unfinished, made.left) == (True, f"{GONE}, while answers were judged")
    assert made.requests < whole.requests
    assert made.answer == (NUMERIC if any(finding.kind == "numeric" for finding in made.findings) else OPEN)
    assert (made.answer == NUMERIC) == (scores >= 10)
    (rest,) = [finding for finding in made.findings if finding.what == "not judged" and finding.cell == "all"]
    assert rest.faulty + made.requests <= rest.of
    assert "Unfinished, the audit ended early: http" in page(made)
    del one.baseline.client.post  # type: ignore[attr-defined]
    one.lost = ""
    again = audited(one)
    assert (again.answer, again.requests, again.findings) == (whole.answer, whole.requests, whole.findings)


def test_faults_that_need_no_scores_are_proven_without_a_baseline() -> None:
    one = course("too-long", share=0.1)
    losing(one, 0, GONE)
    made = audited(one)
    assert (made.answer, made.requests, made.unfinished) == (LOSSY, 0, True)
    assert {finding.what for finding in made.faults} == {"too long"}
    assert "FAULT" in {cell.outcome for cell in made.cells}


def test_a_deviation_is_no_fault_where_the_baselines_own_answers_cannot_be_tested() -> None:
    whole = audited(course("argmax", noise=1e-6, share=0.1, refuses=False))
    assert "another distribution" in {fault.what for fault in whole.faults}
    one = course("argmax", noise=1e-6, share=0.1, refuses=False)
    found = list(one.trials())
    scored(one, found)
    losing(one, 0, GONE)
    made = judged(one, found, "", "", {}, {}, 0.0, 2.0)
    assert "another distribution" not in {fault.what for fault in made.faults}
    assert any("could not be tested" in finding.detail for finding in made.findings)
    assert made.unfinished


def test_an_interrupt_while_answers_are_judged_leaves_a_certificate(tmp_path: Path) -> None:
    one = course(share=0.1)
    losing(one, 10, KeyboardInterrupt())
    made = audited(one)
    with pytest.raises(InterruptedRunError, match="continue with specbench audit --resume"):
        show(made, tmp_path, Output(quiet=True))
    assert made.left == "interrupted"


def test_a_baseline_that_hangs_leaves_an_audit_that_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POST_SECONDS", 1.0)
    plain, over = Server(speculative=False), threading.Event()
    handle, left = plain.handle, iter(range(5))

    def hanging(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        if "prompt_logprobs" in (body or {}) and next(left, None) is None:
            over.wait(30)
        return handle(method, path, body)

    plain.handle = hanging  # type: ignore[method-assign]
    with serving(plain) as baseline, serving(Server()) as spec:
        urls = ("--url", spec, "--baseline-url", baseline)
        done = command("audit", *urls, "--target", NAME, "--requests", "50", "--limit", "8")
        first = json.loads((done.folder / "audit.json").read_text())
        over.set()
        again = command("audit", *urls, "--resume", str(done.folder))
    assert (done.code, again.code) == (4, 0), (done.err, again.err)
    assert "has not ended its answer in 1 seconds" in done.err
    assert "while answers were judged; continue with specbench audit --resume" in done.err
    last = json.loads((done.folder / "audit.json").read_text())
    assert (first["unfinished"], last["unfinished"], last["answer"]) == (True, False, LOSSLESS)
    assert first["requests"] < last["requests"]


# --- the certificate --------------------------------------------------------------------------------------------------


def test_the_certificate_has_the_answer_and_the_causes() -> None:
    made = audited(course("padded-rows", share=0.25))
    written = json.loads(audit_json(made))
    assert (written["schema"], written["answer"], written["requests"]) == ("specbench audit 1", LOSSY, made.requests)
    assert any("rows padded to 1 + K" in one["cause"] for one in written["findings"])
    assert "NOT LOSSLESS" in page(made)
    assert "rows padded to 1 + K" in page(made)


def test_the_certificate_says_what_more_requests_show() -> None:
    made = audited(course(share=0.25))
    best = next(one for one in made.tests if (one["part"], one["test"]) == ("temperature 1", "the best token"))
    curve = {one["requests"]: one for one in power(made)}
    assert sorted(curve) == [100, 200, 500, 1000, 1200, 2000, 5000]  # 2 requests a second
    assert (curve[1200]["minutes"], curve[1200]["share of faulty requests"]) == (10.0, 3 / 1200)
    shifts = [curve[many][SHIFT] for many in (100, 500, 5000)]
    assert shifts[0] == pytest.approx(5**0.5 * shifts[1])  # type: ignore[operator]
    assert shifts[1] == shifts[2] == pytest.approx(best["smallest"] * (best["tokens"] / 2048) ** 0.5)
    assert "10 minutes here compare 1200 requests" in page(made).replace("\\", "")
    assert "| 1,200 | 10.0 | 0.25% | 0" in page(made)
    assert power(replace(made, rate=0.0)) == []
    assert not any("minutes here" in line for line in headline(replace(made, rate=0.0)))


def test_the_report_shows_a_certificate(tmp_path: Path) -> None:
    made = replace(audited(course("argmax", share=0.25)), arms={"audited": HOSTILE[0], "baseline": "http://b"})
    (tmp_path / "audit.json").write_text(audit_json(made))
    found = page_of(tmp_path)
    check_harmless(found)
    for text in (*headline(made), *sentences(made), HOSTILE[0], "What was tried", "What more requests show"):
        assert text in found.visible, text
    assert "Does a server with speculative decoding still give the text of its model?" in found.visible
    assert "How it was measured" not in found.visible
    values = [number["value"] for number in found.numbers]
    assert all(repr(test["p"]) in values for test in made.tests)
    junk = {"arms": 1, "settings": [2], "headline": 3, "sentences": {"a": 4}, "cells": [5], "tests": "x", "power": None}
    (tmp_path / "audit.json").write_text(json.dumps({"schema": "specbench audit 1", **junk}))
    check_harmless(page_of(tmp_path))
    (tmp_path / "audit.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a certificate of an audit"):
        page_of(tmp_path)


def test_the_command(tmp_path: Path, command: Command) -> None:
    with serving(Server(speculative=False)) as baseline, serving(Server(fault="padded-rows")) as spec:
        urls = ("--url", spec, "--baseline-url", baseline, "--target", NAME)
        done = command("audit", *urls, "--requests", "50", "--limit", "8")
        folder = done.folder
        again = command("audit", *urls[:4], "--resume", str(folder))
    assert done.code == again.code == 5, done.err
    assert folder.name in fault_of({"url": spec, "target": NAME}, failed_audits(folder.parent)), "its runs are marked"
    assert {"audit.json", "audit.md", "fault-1.sh", "settings.json"} <= {one.name for one in folder.iterdir()}
    assert "NOT LOSSLESS" in done.out
    assert "continued" not in done.err
    lines = [line for line in (folder / "fault-1.sh").read_text().splitlines() if not line.startswith("#")]
    assert [line.split()[:2] for line in lines] == [["curl", "-s"]] * 2


def test_servers_that_specbench_starts_are_audited(
    command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty_server, "NAME", str(pair.target))
    monkeypatch.setenv(install.VLLM_PYTHON, sys.executable)
    with serving(Server(speculative=False)) as baseline, serving(Server(fault="padded-rows")) as spec:
        urls = {BASELINE: baseline}
        monkeypatch.setattr(Started, "ready", lambda _, one: SimpleNamespace(url=urls.get(one.method, spec)))
        given = ("--backend", "vllm-serve", "--target", pair.target, "--spec-config", "ngram", "--k", 3)
        done = command("audit", *given, "--dataset", "code", "--requests", 50, "--limit", 8)
    assert done.code == 5, done.err
    made = json.loads((done.folder / "audit.json").read_text())
    assert made["settings"]["spec_config"] == made["deployment"]["spec_config"] == "ngram"
    assert "vllm" in made["deployment"]["version"]
    assert "padded to 1 + K" in done.out
