"""`specbench verify` as users call it: proofs, a pair, the certificate and the exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.verifiers.rejection import Rejection
from specbench.jobs import verify
from specbench.results.documents import FILE, PAGE, read_certificate
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair, prompts

CHAIN = ("--method", "chain")


@pytest.fixture
def verified(command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`specbench verify` on the tiny pair with few tokens."""
    monkeypatch.setattr(verify, "proof_checks", lambda *rest: [])  # which have a test of their own
    data = prompts(tmp_path / "words.jsonl", 4, 6, 5)
    short = ("--dataset", data, "--limit", "2", "--max-new-tokens", "8", "--tokens", "100", "--k", "2")
    return lambda *more: command("verify", pair.target, pair.draft, *short, *more)


def checks(done: Outcome) -> dict[tuple[str, str], dict[str, Any]]:
    content = json.loads((done.folder / FILE).read_text())
    return {(check["name"], check["method"]): check for check in content["checks"]}


def test_without_a_pair_the_installation_is_proven(command: Command) -> None:
    done = command("verify", *CHAIN, "--method", "typical").ok()
    assert done.out.splitlines()[-1] == "LOSSLESS as far as was checked: 3 ok, 1 lossy"
    found = checks(done)
    assert found["proof", "chain"]["found"] <= 1e-12 < 0.1 < found["proof", "typical"]["found"]
    assert found["control: a false q", ""]["outcome"] == found["proof with a cache", "chain"]["outcome"] == "ok"
    assert "proof of chain …" in done.err


def test_a_pair_is_checked_and_its_certificate_read_again(verified: Callable[..., Outcome]) -> None:
    done = verified(*CHAIN, "--method", "lenience").ok()
    found = checks(done)
    names = {name for name, method in found if method == "chain"}
    assert names == {"greedy = generate", "greedy re-scored", "z of the surprise", "z of the leaning"}
    assert found["greedy = generate", "baseline"]["detail"] == "2 of 2 texts identical"
    assert found["z of the surprise", "chain"]["outcome"] == "ok"
    assert found["z of the leaning", "lenience"]["outcome"] == "lossy"
    certificate = read_certificate(done.folder / FILE)
    assert len(certificate.pair["target_weights_sha256"]) == 64
    assert certificate.pair["target_weights_sha256"] != certificate.pair["draft_weights_sha256"]
    assert certificate.settings["k"] == 2
    page = (done.folder / PAGE).read_text()
    assert page.startswith("# Certificate of losslessness\n\nLOSSLESS")
    assert "| z of the surprise | chain | ok |" in page
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.slow
def test_equal_commands_find_the_same(verified: Callable[..., Outcome], tmp_path: Path) -> None:
    first, second, other = (
        verified(*CHAIN, "--format", "jsonl", "-o", tmp_path / name, "--seed", seed)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.out == second.out != other.out


def test_a_rule_that_is_not_lossless_ends_with_its_code(
    verified: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draft is accepted: the greedy output says so, and its second pass, and a z-test."""

    def judge(self: Rejection, p: Any, draft: Any, rng: Any) -> Any:
        ones = torch.ones_like(p)
        return right(self, ones, draft, rng) if draft.tree.size else right(self, p, draft, rng)

    right = Rejection.judge
    monkeypatch.setattr(Rejection, "judge", judge)
    done = verified(*CHAIN, "--tokens", "400")
    assert done.code == 5
    assert "NOT LOSSLESS" in done.out
    assert "specbench: " in done.err.splitlines()[-1]
    found = checks(done)
    failed = {name for (name, method), check in found.items() if check["outcome"] == "FAILED" and method == "chain"}
    assert {"greedy = generate", "greedy re-scored", "z of the surprise"} <= failed
    assert found["greedy = generate", "baseline"]["outcome"] == "ok"


@pytest.mark.slow
def test_methods_that_the_pair_cannot_run_say_why(
    command: Command, pair: Pair, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(verify, "methods", lambda: ["chain", "prompt-lookup", "layer-skip-demo"])
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    short = ("--dataset", data, "--limit", "1", "--max-new-tokens", "4", "--tokens", "100")
    done = command("verify", pair.target, *short).ok()
    found = checks(done)
    assert found["greedy = generate", "prompt-lookup"]["outcome"] == "ok"
    for method in ("chain", "layer-skip-demo"):
        assert found["greedy = generate", method]["outcome"] == "not checked"
    assert "note: not checked: chain: no draft is known for" in done.err
