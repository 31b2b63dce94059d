"""Drafts with another tokenizer beside those of transformers: the same common tokens, and the same first drafts."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation.candidate_generator import (
    AssistantToTargetTranslator,
    AssistedCandidateGeneratorDifferentTokenizers,
    UniversalSpeculativeDecodingGenerator,
)

from specbench.decoding.decode import begin
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.strings import Strings
from specbench.decoding.randomness import seeded
from specbench.decoding.views import Common
from specbench.models.checkpoints.check import NO_LIMIT
from specbench.models.checkpoints.vocabularies import Rewriter
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.checkpoints import llama
from tests.support.foreign import both, byte_level
from tests.support.tiny import CPU

K, WINDOW = 4, 10
TARGET, DRAFT = byte_level([("Ġ", "t"), ("h", "e"), ("Ġt", "he")]), byte_level([("t", "h"), ("th", "e"), ("Ġ", "a")])
PAIR = both(TARGET, DRAFT)
TEXTS = ["the a the", "a thé, the", "the the\n\nhe"]
GREEDY = Sampling(temperature=0.0)
LETTERS = [n for n, text in PAIR.draft.tokens.items() if text.isascii() and text.decode().isprintable()]


def assistant(seed: int) -> Any:
    """A draft with laws far from uniform, for both."""
    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    net = LlamaForCausalLM(llama(vocab_size=len(DRAFT), max_position_embeddings=64, **ends)).double().eval()
    for weight in (w for w in net.parameters() if w.ndim > 1):
        weight.data *= 15
    net.generation_config.update(
        num_assistant_tokens=K, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0,
        assistant_lookbehind=WINDOW, target_lookbehind=WINDOW, pad_token_id=0,
    )  # fmt: skip
    return net.requires_grad_(False)


def theirs(kind: Any, net: Any, ids: list[int], **more: Any) -> list[int]:
    """The first candidates of a generator of transformers."""
    config = GenerationConfig(
        max_length=64, min_length=0, pad_token_id=0, do_sample=bool(more), top_k=1 if more else None
    )
    given = torch.tensor([ids])
    made = kind(
        input_ids=given, assistant_model=net, target_tokenizer=TARGET, assistant_tokenizer=DRAFT,
        generation_config=config, model_kwargs={}, **more,
    )  # fmt: skip
    found, _ = made.get_candidates(given)
    return list(found[0, len(ids) :].tolist())


def test_the_common_tokens_are_theirs() -> None:
    found = AssistantToTargetTranslator(TARGET, DRAFT, len(TARGET))
    assert found.target_to_assistant_input_ids == dict(PAIR.common)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_first_common_tokens_are_theirs(text: str, seed: int) -> None:
    net, ids = assistant(seed), TARGET.encode(text)
    model = Causal(net, GREEDY, len(DRAFT))
    model.known = PAIR.dictionary().theirs
    drafter = ModelDrafter(Common(model, PAIR.dictionary(), NO_LIMIT), K)
    context = begin([ids], 20, K, [], CPU)
    drafter.start(context)
    found = drafter.propose(context, K, seeded([0], CPU)).tree.ids[0].tolist()
    translator = AssistantToTargetTranslator(TARGET, DRAFT, len(TARGET), assistant_model=net)
    assert found == theirs(UniversalSpeculativeDecodingGenerator, net, ids, atm_translator=translator)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_first_strings_end_as_theirs(text: str, seed: int) -> None:
    """Of letters alone: they decode bytes that are no character as a replacement, and draft that. They align by the
    longest diagonal of equal tokens, which lies too far on where a draft repeats itself or the text is shorter than
    their window: then the first tokens of the draft are lost, and what is left cannot be accepted."""
    net, ids = assistant(seed), TARGET.encode(text)
    net.generation_config.suppress_tokens = sorted({*range(len(DRAFT))} - {*LETTERS})
    model = Causal(net, GREEDY, len(DRAFT))
    model.known = torch.tensor(LETTERS)
    drafter = Strings(ModelDrafter(model, K), Rewriter(PAIR), NO_LIMIT)
    context = begin([ids], 20, K, [], CPU)
    drafter.start(context)
    found = drafter.propose(context, K, seeded([0], CPU)).tree.ids[0].tolist()
    reading = Rewriter(PAIR).read(ids)
    own = begin([reading.ids], 20, K, [], CPU)
    model.start(own)
    whole = Rewriter(PAIR).write(reading, model.sample(own, K, seeded([0], CPU))[0][0].tolist())
    other = theirs(AssistedCandidateGeneratorDifferentTokenizers, net, ids)
    assert found == whole[:K]
    assert 0 < len(other) <= len(whole)
    assert whole[-len(other) :] == other
