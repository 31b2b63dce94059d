"""The pair check: the same ids must mean the same tokens; everything else is a warning."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BloomConfig, Gemma3Config, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.check import NO_LIMIT, PROBES, check_pair

END = "<|end|>"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("i", "n"), ("e", "r"), ("Ġ", "t")]
TOKENS = [END, *BYTES, *("".join(pair) for pair in MERGES)]  # 260 of them


def tokenizer(
    tokens: list[str] = TOKENS, merges: bool = True, extra: tuple[str, ...] = (), eos: str = END
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer in which `tokens` have their places as ids."""
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, MERGES if merges else []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([*extra])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos)


def config(width: int = 260, context: int = 64) -> LlamaConfig:
    return LlamaConfig(vocab_size=width, max_position_embeddings=context)


def test_a_pair_with_one_tokenizer_fits_without_warnings() -> None:
    assert check_pair(tokenizer(), tokenizer(), config(), config()) == (64, [])


def test_a_permuted_vocabulary_of_equal_size_is_refused_with_the_first_three_ids() -> None:
    shuffled = [END, *random.Random(0).sample(TOKENS[1:], len(TOKENS) - 1)]
    first = next(i for i, (ours, theirs) in enumerate(zip(TOKENS, shuffled, strict=True)) if ours != theirs)
    with pytest.raises(UnusableModelError) as refusal:
        check_pair(tokenizer(), tokenizer(shuffled), config(), config())
    message = str(refusal.value)
    assert f"{first} is {TOKENS[first]!r} in the target and {shuffled[first]!r} in the draft" in message
    assert message.count("in the target and") == 3
    assert "prompt lookup" in message
    assert "\n" not in message


def test_two_swapped_tokens_are_enough_to_refuse() -> None:
    swapped = [*TOKENS[:-2], TOKENS[-1], TOKENS[-2]]
    with pytest.raises(UnusableModelError, match=r"2 ids differ\): 258 is 'er' .* 'Ġt' .*, 259 is 'Ġt'"):
        check_pair(tokenizer(), tokenizer(swapped), config(), config())


def test_an_empty_tokenizer_is_refused() -> None:
    empty = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    with pytest.raises(UnusableModelError, match="no id in common"):
        check_pair(tokenizer(), empty, config(), config())


@pytest.mark.parametrize(("draft_width", "verb"), [(264, "padded"), (280, "cut")])
def test_equal_tokenizers_with_padded_heads_fit_with_a_warning(draft_width: int, verb: str) -> None:
    _, (warning,) = check_pair(tokenizer(), tokenizer(), config(272), config(draft_width))
    assert f"272 rows in the target, {draft_width} in the draft" in warning
    assert f"the draft's distribution is {verb}" in warning


def test_the_width_of_a_composite_model_is_that_of_its_text_part() -> None:
    composite = Gemma3Config(text_config={"vocab_size": 272, "max_position_embeddings": 48})
    context, (warning,) = check_pair(tokenizer(), tokenizer(), composite, config(260))
    assert context == 48
    assert "272 rows in the target" in warning


def test_a_token_beyond_the_embeddings_is_a_warning() -> None:
    _, found = check_pair(tokenizer(extra=("<image>",)), tokenizer(extra=("<image>",)), config(264), config(260))
    assert any("1 tokens are beyond the 260 embeddings of the draft, first 260 '<image>'" in w for w in found)


@pytest.mark.parametrize("side", ["target", "draft"])
def test_extra_tokens_of_one_side_are_a_warning(side: str) -> None:
    more, plain = tokenizer(extra=("<think>", "</think>")), tokenizer()
    pair = (more, plain) if side == "target" else (plain, more)
    _, (warning,) = check_pair(*pair, config(264), config(264))
    assert warning.startswith(f"2 tokens of the {side} are unknown to the ")
    assert "260 '<think>', 261 '</think>'" in warning


def test_equal_ids_but_other_merges_are_a_warning() -> None:
    _, (warning,) = check_pair(tokenizer(), tokenizer(merges=False), config(), config())
    assert f"of {len(PROBES)} probe texts are split into other tokens" in warning


def test_another_end_token_is_a_warning() -> None:
    _, found = check_pair(tokenizer(), tokenizer(eos="in"), config(), config())
    assert found == [f"eos_token is {END!r} in the target and 'in' in the draft: the target's is used"]


def test_the_context_is_the_shorter_one() -> None:
    context, (warning,) = check_pair(tokenizer(), tokenizer(), config(context=128), config(context=32))
    assert context == 32
    assert "the draft reads 32 tokens only" in warning
    assert check_pair(tokenizer(), tokenizer(), config(context=32), config(context=128))[0] == 32


def test_the_context_is_found_under_its_older_name() -> None:
    assert check_pair(tokenizer(), tokenizer(), GPT2Config(vocab_size=260, n_positions=48), config())[0] == 48


def test_a_model_without_a_limit_does_not_bound_the_context() -> None:
    unlimited = BloomConfig(vocab_size=260)
    assert check_pair(tokenizer(), tokenizer(), unlimited, config())[0] == 64
    assert check_pair(tokenizer(), tokenizer(), unlimited, unlimited)[0] == NO_LIMIT


def test_the_probes_cover_what_tokenizers_disagree_on() -> None:
    text = "".join(PROBES)
    assert all(sample in text for sample in ("é", "🙂", "   ", "\t", "\n", "\r\n", "日", "def ", "0x1F"))
