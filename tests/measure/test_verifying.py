"""The checks of a pair: right methods pass them, and methods that are wrong in one place are seen, with fixed seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.backends.choose import backend_for
from specbench.backends.native import Native
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.lossy import Lenient
from specbench.decoding.verifiers.rejection import Rejection
from specbench.judge.significance import z_tests
from specbench.measure import proofs
from specbench.measure.lossless import PlainPass, Text, own_attention
from specbench.measure.plan import prompts_of
from specbench.metrics import Trace
from specbench.models.network.causal import Causal
from specbench.results import documents
from specbench.spec import RunSpec
from tests.support.tinypair import Pair, prompts

TOKENS = 2000


@dataclass(frozen=True)
class Bench:
    """The tiny pair, loaded, a spec at temperature 0.7, prompts, and who judges."""

    backend: Native
    spec: RunSpec
    prompts: Sequence[Prompt]
    judge: proofs.Judge


@pytest.fixture(scope="module")
def bench(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    data = prompts(tmp_path_factory.mktemp("data") / "words.jsonl", *range(3, 11))
    spec = RunSpec(
        target=str(pair.target), draft=str(pair.draft), dataset=data, k=3, max_new_tokens=32, temperature=0.7,
        ignore_eos=True,
    )  # fmt: skip
    backend: Any = backend_for([spec])
    backend.load()
    some = prompts_of([spec], backend).prompts
    judge = proofs.judge_of(backend, backend.scores, spec.with_(temperature=0), some[:2])
    return Bench(backend, spec, some, judge)


class Misreporting(Causal):
    """A draft that says it drew from a flatter distribution than it did."""

    def sample(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        ids, rows = super().sample(*arguments, **named)
        flatter = rows.sqrt()
        return ids, flatter / flatter.sum(-1, keepdim=True)


def broken(backend: Native, spec: RunSpec, what: str) -> Speculate:
    """Speculative sampling, right or wrong in one place."""
    law = backend.sampling(spec)
    target, draft = (Causal(backend.network(name), law, backend.width) for name in ("target", "draft"))
    if what == "temperature twice":
        target = Causal(backend.network("target"), replace(law, temperature=law.temperature**2), backend.width)
    if what == "false q":
        draft = Misreporting(backend.network("draft"), law, backend.width)
    return Speculate(ModelDrafter(draft, spec.k), target, Lenient(0.8) if what == "too much" else Rejection())


def z_of(bench: Bench, what: str) -> dict[str, Any]:
    method, device = broken(bench.backend, bench.spec, what), bench.backend.device

    def emit(ids: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
        return decode(method, ids, new=bench.spec.max_new_tokens, eos=[], rng=seeded(seeds, device), device=device)

    return z_tests(proofs.sampled_tallies(bench.judge, bench.spec.with_(batch=64), emit, bench.prompts, TOKENS))


def test_a_right_method_is_within_the_limits(bench: Bench) -> None:
    found = z_of(bench, "")
    assert set(found) == {documents.SURPRISE, documents.LEANING}
    assert max(abs(test.z) for test in found.values()) < 4
    assert not any(test.differs for test in found.values())


@pytest.mark.parametrize("what", ["too much", "false q", "temperature twice"])
def test_a_method_that_is_wrong_in_one_place_is_seen(bench: Bench, what: str) -> None:
    found = z_of(bench, what)
    assert any(test.differs for test in found.values()), found
    assert max(abs(test.z) for test in found.values()) > 4.5


def test_the_judge_agrees_with_itself_and_with_our_own_passes(bench: Bench) -> None:
    """Greedy text of transformers is the best everywhere; our cache and its absence differ by rounding alone."""
    assert [bench.judge.shortfall(text) for text in bench.judge.references] == [0.0, 0.0]
    assert 0 < bench.judge.floor.noise < 1e-3
    assert bench.judge.floor.positions == 64


def test_greedy_text_with_one_wrong_token_is_seen(bench: Bench) -> None:
    """The wrong token is followed by right ones, so that only a second pass over all of it sees it for what it is."""
    spec, some = bench.spec.with_(temperature=0), bench.prompts[:2]

    def emit(wrong: int | None) -> Any:
        def run(ids: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            (text,) = (text for text in bench.judge.references if text.prompt == tuple(ids[0]))
            tokens = list(text.tokens)
            if wrong is not None:
                tokens[wrong] = (tokens[wrong] + 1) % 60
            return [Trace(tuple(tokens), ())]

        return run

    right = proofs.greedy_checks(bench.judge, spec, emit(None), some)
    assert [(check.name, check.outcome, check.detail[:6]) for check in right] == [
        (documents.GREEDY, "ok", "2 of 2"), (documents.RESCORED, "ok", "below "),
    ]  # fmt: skip
    wrong = proofs.greedy_checks(bench.judge, spec, emit(20), some)
    assert [check.outcome for check in wrong] == ["FAILED", "FAILED"]
    assert all(check.found > check.limit for check in wrong)  # type: ignore[operator]
    lossy = proofs.greedy_checks(bench.judge, spec.with_(method="lenience"), emit(20), some)
    assert [check.outcome for check in lossy] == ["lossy", "lossy"]


def test_a_text_that_ends_too_early_is_no_rounding(bench: Bench) -> None:
    def run(ids: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
        return [Trace(text.tokens[:5], ()) for text in bench.judge.references if text.prompt == tuple(ids[0])]

    first, again = proofs.greedy_checks(bench.judge, bench.spec.with_(temperature=0), run, bench.prompts[:2])
    assert (first.outcome, first.found) == ("FAILED", float("inf"))
    assert again.outcome == "ok"  # every token of it was the best


def test_the_target_as_its_own_draft_is_always_accepted(bench: Bench) -> None:
    greedy = bench.spec.with_(temperature=0)
    noise, accepted, alpha = proofs.control_checks(bench.judge, greedy, bench.spec, bench.prompts[:2])
    assert (noise.name, accepted.outcome, accepted.found, alpha.outcome) == (documents.FLOOR, "ok", 0, "ok")


def test_another_target_as_draft_of_the_control_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the control: a twin that is not the target."""
    other = lambda model: Causal(bench.backend.network("draft"), model.sampling, model.width)  # noqa: E731
    monkeypatch.setattr(Causal, "twin", other)
    greedy = bench.spec.with_(temperature=0)
    _, accepted, alpha = proofs.control_checks(bench.judge, greedy, bench.spec, bench.prompts[:2])
    assert (accepted.outcome, alpha.outcome) == ("FAILED", "FAILED")


def test_an_engine_that_gives_tokens_alone_is_judged(bench: Bench) -> None:
    """Its tokens come from wherever they come from: here from the target's probabilities, shifted by one id."""
    network, rng = bench.backend.network("target"), torch.Generator().manual_seed(5)

    def engine(ids: Sequence[Sequence[int]], seeds: Sequence[int], shift: int = 0) -> list[Trace]:
        text = torch.tensor(ids)
        for _ in range(8):
            logits = network(input_ids=text, use_cache=False).logits[:, -1] / bench.spec.temperature
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=rng)
            text = torch.cat([text, (drawn + shift) % 61], 1)
        return [Trace(tuple(row[len(ids[0]) :].tolist()), ()) for row in text]

    spec, some = bench.spec.with_(max_new_tokens=8, batch=64), bench.prompts[:1]
    for shift in (0, 1):
        emit = partial(engine, shift=shift)
        (surprise,) = proofs.sampled_tallies(bench.judge, spec.with_(method="baseline"), emit, some, 500).values()
        assert (abs(surprise.z) > 10) == bool(shift)


def test_own_attention_is_put_back(bench: Bench) -> None:
    network = bench.backend.network("target")
    before = network.config._attn_implementation
    with own_attention(network):
        assert network.config._attn_implementation == "sdpa" != before
    assert network.config._attn_implementation == before


def test_the_plain_pass_gives_the_logits_before_every_token(bench: Bench) -> None:
    network, text = bench.backend.network("target"), Text((1, 2, 3), (4, 5))
    rows = PlainPass(network, bench.backend.device)(text.prompt, text.tokens)
    whole = network(input_ids=torch.tensor([[1, 2, 3, 4, 5]]), use_cache=False).logits[0]
    assert rows.dtype == torch.float64
    assert torch.allclose(rows, whole[2:4].double(), atol=1e-5)
