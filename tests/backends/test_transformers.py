"""The engine transformers beside our own: the same tokens and the same counts of every round, and what it refuses."""

from pathlib import Path

import pytest
import torch

from specbench.backends import choose
from specbench.backends.engines import generate
from specbench.backends.engines.generate import Way
from specbench.backends.engines.transformers import Transformers, refuse_more
from specbench.errors import UnusableModelError, UsageError
from specbench.metrics import Trace
from specbench.spec import RunSpec
from tests.support import foreign
from tests.support.tinypair import Pair

PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], [3, 4, 3, 4, 3, 4, 3]]
SEEDS = [0, 1, 2]
NEW, K = 16, 3


def spec_of(pair: Pair, engine: str, **more: object) -> RunSpec:
    common = {"target": str(pair.target), "draft": str(pair.draft), "dtype": "float64", "max_new_tokens": NEW, "k": K}
    return RunSpec.model_validate({**common, "backend": engine, **more})


def decoded(spec: RunSpec) -> list[Trace]:
    engine = choose.backend_for([spec])
    engine.load()
    return engine.prepare(spec, max(map(len, PROMPTS)))(PROMPTS, SEEDS)


def counts(trace: Trace) -> list[tuple[int, int, int]]:
    return [(one.tested, one.accepted, one.emitted) for one in trace.rounds]


# --- beside our own ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignore_eos", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("method", ["baseline", "chain", "prompt-lookup", "early-exit"])
def test_greedy_rounds_and_overlaps_are_those_of_our_own_loop(pair: Pair, method: str, ignore_eos: bool) -> None:
    ours, theirs = (
        decoded(spec_of(pair, name, method=method, ignore_eos=ignore_eos)) for name in ("native", "transformers")
    )
    assert [one.tokens for one in theirs] == [one.tokens for one in ours]
    assert [counts(one) for one in theirs] == [counts(one) for one in ours]
    overlaps = [[[round(x, 9) for x in one.overlap] for one in trace.rounds] for trace in ours]
    assert [[list(one.overlap) for one in trace.rounds] for trace in theirs] == overlaps
    assert any(len(one.tokens) < NEW for one in ours) is not ignore_eos, "an end of sequence is met"
    assert all(t.seconds > 0 and t.prefill_seconds > 0 and t.spans["verify"] > 0 for t in theirs)


@pytest.mark.parametrize("method", ["chain", "early-exit"])
@pytest.mark.parametrize("k", [1, 5])
def test_k_is_honoured_in_every_round_but_for_the_end(pair: Pair, method: str, k: int) -> None:
    for trace in decoded(spec_of(pair, "transformers", method=method, k=k, ignore_eos=True)):
        left = NEW
        for one in trace.rounds:
            assert one.drafted == min(k, left - 1)
            left -= one.emitted
        assert left == 0


def test_sampling_follows_the_seed_of_every_prompt_and_leaves_the_generator_alone(pair: Pair) -> None:
    before = torch.random.get_rng_state()
    spec = spec_of(pair, "transformers", temperature=1.0, ignore_eos=True)
    first, again = decoded(spec), decoded(spec)
    assert [one.tokens for one in first] == [one.tokens for one in again]
    assert first[0].tokens != decoded(spec.with_(temperature=2.0))[0].tokens
    assert torch.equal(torch.random.get_rng_state(), before)


def test_sampling_from_the_likeliest_token_alone_is_greedy_and_settings_with_a_checkpoint_change_no_text(
    pair: Pair,
) -> None:
    greedy = [one.tokens for one in decoded(spec_of(pair, "native", ignore_eos=True))]
    drawn = decoded(spec_of(pair, "transformers", temperature=1.0, top_k=1, ignore_eos=True))
    assert [one.tokens for one in drawn] == greedy
    spec = spec_of(pair, "transformers", ignore_eos=True)
    engine = choose.backend_for([spec])
    engine.load()
    assert isinstance(engine, Transformers)
    engine.inner.network("target").generation_config.update(repetition_penalty=5.0, min_new_tokens=9)
    assert [one.tokens for one in engine.prepare(spec, 7)(PROMPTS, SEEDS)] == greedy


def test_a_law_has_nothing_but_what_is_asked_for() -> None:
    law = generate.settings_of(RunSpec(temperature=0.7), [])
    assert (law["top_k"], law["eos_token_id"]) == (0, None), "its own default is the best 50"
    assert not {"top_p", "min_p", "eta_cutoff"} & set(law)
    assert generate.settings_of(RunSpec(temperature=1.0, eta=0.01), [7])["eta_cutoff"] == 0.01


def test_two_tokenizers_are_joined_by_universal_assisted_decoding(tmp_path: Path) -> None:
    target = foreign.byte_level([("Ġ", "t"), ("h", "e"), ("Ġt", "he")])
    other = foreign.save_pair(tmp_path, target, foreign.byte_level([("t", "h"), ("th", "e")]))
    greedy = decoded(spec_of(other, "transformers", ignore_eos=True))
    drawn = decoded(spec_of(other, "transformers", temperature=1.0, top_k=1, ignore_eos=True))
    plain = decoded(spec_of(other, "transformers", method="baseline", k=0, ignore_eos=True))
    for found in (greedy, drawn):
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert all(sum(r.emitted for r in one.rounds) == NEW for one in found)
        assert any(r.drafted for one in found for r in one.rounds)
    described = choose.backend_for([spec_of(other, "transformers")]).describe()
    assert described["vocabulary_resolved"] == "strings"
    with pytest.raises(UsageError, match="drafts by the rule strings: leave out --vocabulary common"):
        choose.backend_for([spec_of(other, "transformers", vocabulary="common")])


def test_a_vocabulary_is_given_in_the_order_of_its_ids() -> None:
    shipped = foreign.byte_level([("t", "h"), ("th", "e")])
    ids = list(generate.ordered(shipped).get_vocab().values())
    assert ids == sorted(shipped.get_vocab().values())
    assert generate.ordered(shipped)("the").input_ids == shipped("the").input_ids


@pytest.mark.slow
def test_its_best_form_decodes_the_same(pair: Pair) -> None:
    common = {"dtype": "float32", "ignore_eos": True, "method": "baseline", "k": 0}
    (ours, theirs) = (
        decoded(spec_of(pair, *one, **common))
        for one in (("native",), ("transformers",))  # type: ignore[arg-type]
    )
    best = decoded(spec_of(pair, "transformers", **{**common, "tier": "compile"}))
    assert [one.tokens for one in best] == [one.tokens for one in theirs] == [one.tokens for one in ours]
    assert all(len(one.rounds) == NEW and one.prefill_seconds > 0 for one in best)


# --- what it cannot ---------------------------------------------------------------------------------------------------


def test_an_architecture_that_ignores_an_early_exit_is_refused(pair: Pair) -> None:
    spec = spec_of(pair, "transformers", method="early-exit")
    engine = choose.backend_for([spec])
    engine.load()
    assert isinstance(engine, Transformers)
    call = generate.early_exit(engine.inner.network("target"), generate.settings_of(spec, []), K, layers=2)
    with pytest.raises(UnusableModelError, match="ignores an early exit"):
        call(PROMPTS[0], 0)


def test_a_round_of_more_than_k_tokens_ends_the_cell(pair: Pair) -> None:
    found = decoded(spec_of(pair, "transformers", k=4, ignore_eos=True))
    with pytest.raises(UnusableModelError, match="drafted 4 tokens in a round of K = 3"):
        refuse_more(found, Way("assisted", 3, "draft"))
