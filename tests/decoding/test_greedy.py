"""At temperature 0 every method emits, token for token, what `generate` of transformers does."""

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
import transformers as hf

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter, Verifier
from specbench.decoding.randomness import seeded
from specbench.decoding.rounds import NonFiniteError
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.files import ASSETS
from specbench.metrics import Trace, acceptance
from specbench.models.checkpoints.description import load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import resolve
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.rounding import same_texts
from tests.support.tiny import CPU, network

GREEDY = Sampling(0)
V, NEW = 48, 56
KS = range(1, 9)
verifiers = pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=["chain", "token-match"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
PAIR = ASSETS / "pair"


@lru_cache
def random_prompts(count: int = 12) -> tuple[tuple[int, ...], ...]:
    """Prompts of 1 to `count` tokens."""
    generator = torch.Generator().manual_seed(0)
    return tuple(tuple(torch.randint(V, (n + 1,), generator=generator).tolist()) for n in range(count))


@lru_cache
def target_of(dtype: torch.dtype) -> Any:
    return network("llama", V, 3, dtype)


@lru_cache
def draft_of(dtype: torch.dtype) -> Any:
    return with_noise(target_of(dtype))


def with_noise(target: Any, noise: float = 0.03) -> Any:
    """A draft that is wrong often enough, and not too often."""
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    for parameter in draft.parameters():
        wrong = noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += wrong.to(parameter.dtype)
    return draft


def run(
    target: Any,
    draft: Any,
    k: int,
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    new: int = NEW,
    eos: Sequence[int] = (),
    law: Sampling = GREEDY,
) -> list[Trace]:
    """Decode all prompts in one ragged batch; without a draft it is the baseline."""
    width = target.config.vocab_size
    drafter: Drafter = ModelDrafter(Causal(draft, law, width), k) if draft else NoDraft()
    method = Speculate(drafter, Causal(target, law, width), verifier)
    return decode(method, prompts, new=new, eos=eos, rng=seeded(range(len(prompts)), CPU), device=CPU)


def same(net: Any, prompts: Sequence[Sequence[int]], expected: Sequence[Sequence[int]], traces: list[Trace]) -> None:
    same_texts(prompts, expected, tokens_of(traces), net)


def tokens_of(traces: Sequence[Trace]) -> list[tuple[int, ...]]:
    return [trace.tokens for trace in traces]


@torch.inference_mode()
def generated(net: Any, prompt: Sequence[int], new: int = NEW, eos: Sequence[int] = ()) -> tuple[int, ...]:
    """What transformers emits greedily after one prompt, alone."""
    config = hf.GenerationConfig(
        do_sample=False, max_new_tokens=new, eos_token_id=list(eos) or None, pad_token_id=0, bos_token_id=None
    )
    ids = torch.tensor([prompt])
    output = net.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return tuple(output[0, len(prompt) :].tolist())


@lru_cache
def expected(dtype: torch.dtype) -> list[tuple[int, ...]]:
    return [generated(target_of(dtype), prompt) for prompt in random_prompts()]


@pytest.mark.processor
@dtypes
def test_the_baseline_is_generate(dtype: torch.dtype) -> None:
    traces = run(target_of(dtype), None, 0, Rejection(), random_prompts())
    same(target_of(dtype), random_prompts(), expected(dtype), traces)
    assert all(len(trace.rounds) == NEW for trace in traces)


@pytest.mark.processor
@verifiers
@pytest.mark.parametrize("k", quick_or_slow(KS, lambda k: k == 4))
@dtypes
def test_every_method_is_generate_whatever_was_accepted(dtype: torch.dtype, k: int, verifier: Verifier) -> None:
    traces = run(target_of(dtype), draft_of(dtype), k, verifier, random_prompts())
    same(target_of(dtype), random_prompts(), expected(dtype), traces)
    whole = [r for trace in traces for r in trace.rounds if r.usable == k]
    assert {r.accepted for r in whole} == set(range(k + 1)), "some number of accepted tokens never occurred"
    assert len({len(trace.rounds) for trace in traces}) > 1, "the rows never went apart"


@verifiers
@pytest.mark.parametrize("k", [1, 3, 8])
def test_decoding_ends_with_the_first_end_token_as_generate_does(k: int, verifier: Verifier) -> None:
    dtype = torch.float64
    full = expected(dtype)
    ends = sorted({tokens[place] for tokens, place in zip(full, (0, 1, 2, 5, 7, 11), strict=False)})
    traces = run(target_of(dtype), draft_of(dtype), k, verifier, random_prompts(), eos=ends)
    assert tokens_of(traces) == [generated(target_of(dtype), prompt, eos=ends) for prompt in random_prompts()]
    assert len({len(trace.tokens) for trace in traces}) > 2
    assert any(trace.tokens[-1] in ends for trace in traces)
    assert not any(token in ends for trace in traces for token in trace.tokens[:-1])


@verifiers
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_rows_may_end_with_the_last_position_that_the_network_knows(name: str, verifier: Verifier) -> None:
    target, new = network(name, V), 24
    prompts = [[token] * (target.config.max_position_embeddings - new) for token in range(6)]
    traces = run(target, with_noise(target), 6, verifier, prompts, new)
    assert tokens_of(traces) == [generated(target, prompt, new) for prompt in prompts]
    assert len({len(trace.rounds) for trace in traces}) > 1, "no row went on beside one that had ended"


@verifiers
def test_among_equal_logits_the_lowest_id_is_emitted(verifier: Verifier) -> None:
    flat = copy.deepcopy(target_of(torch.float64))
    flat.lm_head.weight.data.zero_()
    traces = run(flat, draft_of(torch.float64), 3, verifier, random_prompts(4), new=12)
    assert tokens_of(traces) == [generated(flat, prompt, 12) for prompt in random_prompts(4)] == [(0,) * 12] * 4


@verifiers
@pytest.mark.parametrize("law", [GREEDY, Sampling(1.0), Sampling(0.8, top_p=0.9)], ids=str)
@pytest.mark.parametrize("k", [1, 4])
def test_a_draft_equal_to_the_target_is_always_accepted(k: int, law: Sampling, verifier: Verifier) -> None:
    if law.temperature and isinstance(verifier, TokenMatch):
        pytest.skip("two draws from one law differ: token match accepts Σ p² of them")
    net = target_of(torch.float64)
    traces = run(net, copy.deepcopy(net), k, verifier, random_prompts(3), new=4 * (k + 1), law=law)
    found = acceptance([r for trace in traces for r in trace.rounds])
    assert found.alpha_tested == 1
    assert found.alpha == pytest.approx(1, abs=1e-12)
    assert found.tokens_per_round == k + 1


SPOILT = {GREEDY: torch.nan, Sampling(1.0): torch.inf, Sampling(1.0, top_k=5, top_p=0.9): -torch.inf}


@pytest.mark.parametrize(
    ("law", "value"), quick_or_slow(product(SPOILT, SPOILT.values()), lambda law, value: SPOILT[law] is value)
)
@pytest.mark.parametrize("verifier", [None, Rejection(), TokenMatch()], ids=["baseline", "chain", "token-match"])
@pytest.mark.parametrize("broken", ["target", "draft"])
@pytest.mark.parametrize("where", ["everywhere", "after one token"])
def test_logits_that_are_no_numbers_end_the_decode_with_an_error_that_says_so(
    where: str, broken: str, value: float, verifier: Verifier | None, law: Sampling
) -> None:
    if broken == "draft" and verifier is None:
        pytest.skip("the baseline has no draft")
    target, draft = copy.deepcopy(target_of(torch.float32)), copy.deepcopy(draft_of(torch.float32))
    net, prompts = (target if broken == "target" else draft), random_prompts(3)
    if where == "everywhere":
        net.lm_head.weight.data[:] = value
    else:
        seen = run(target, None, 0, Rejection(), prompts, law=law)[0].tokens
        net.model.embed_tokens.weight.data[seen[5]] = value
    with pytest.raises(NonFiniteError, match="NaN or infinite") as caught:
        run(target, draft if verifier else None, 3, verifier or Rejection(), prompts, law=law)
    assert "\n" not in str(caught.value)


# The shipped pair: 20 prompts of the shipped data sets in one ragged batch.

LONG = 64
EVERY = [(torch.float32, k) for k in (3, 8)] + [(torch.float64, 4)]
SHIPPED = quick_or_slow(EVERY, lambda dtype, k: k == 3)


@lru_cache
def shipped_pair(dtype: torch.dtype) -> tuple[Any, Any]:
    """Target and draft as a run loads them."""
    target, draft = (load_model(resolve(name), dtype, CPU).model for name in ("demo", "demo-draft"))
    return target, draft


@lru_cache
def shipped_prompts() -> tuple[tuple[int, ...], ...]:
    """Twenty prompts of many lengths, code and prose."""
    tokenizer = load_tokenizer(resolve("demo"))
    files = {"code": "prompt", "articles": "document"}
    texts = [
        json.loads(line)[column]
        for name, column in files.items()
        for line in (ASSETS / "prompts" / f"{name}.jsonl").read_text().splitlines()[:10]
    ]
    return tuple(tuple(tokenizer(text)["input_ids"][: 4 + 2 * n]) for n, text in enumerate(texts))


@lru_cache
def shipped_baseline(dtype: torch.dtype) -> list[tuple[int, ...]]:
    target, _ = shipped_pair(dtype)
    return tokens_of(run(target, None, 0, Rejection(), shipped_prompts(), LONG, [target.config.eos_token_id]))


@pytest.mark.slow
@pytest.mark.processor
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_baseline_of_the_shipped_pair_is_generate(dtype: torch.dtype) -> None:
    plain = hf.AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=dtype, attn_implementation="sdpa").eval()
    end = plain.config.eos_token_id
    some = shipped_prompts()[::7]  # of both data sets
    same_texts(some, [generated(plain, prompt, LONG, [end]) for prompt in some], shipped_baseline(dtype)[::7], plain)


@pytest.mark.processor
@pytest.mark.parametrize(("dtype", "k"), SHIPPED, ids=str)
def test_the_shipped_pair_is_lossless(dtype: torch.dtype, k: int) -> None:
    target, draft = shipped_pair(dtype)
    verifier = TokenMatch() if k in (3, 5) else Rejection()  # at temperature 0 they differ in no decision
    traces = run(target, draft, k, verifier, shipped_prompts(), LONG, [target.config.eos_token_id])
    same(target, shipped_prompts(), shipped_baseline(dtype), traces)
    assert {r.accepted for trace in traces for r in trace.rounds if r.usable == k} == set(range(k + 1))
