"""Tokens as bytes: what every kind of tokenizer writes, from anywhere in a text, and what has no spelling.

The chat of a tokenizer: transformers' own tokens, no second BOS, the same on every day, errors in one line.
"""

import os
import signal
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specbench.errors import UsageError
from specbench.models.checkpoints import tokenizers
from specbench.models.checkpoints.tokenizers import DATE, TokenizerChat, byte_of, runs_on, spelling_of
from tests.support.foreign import byte_level, letters, sentence_pieces

MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "©")]
WORDS = ["▁the", "▁he", "é"]


def test_letters_for_bytes_are_read_as_bytes() -> None:
    found = spelling_of(byte_level(MERGES))
    assert found.kind == "bytes"
    assert found.begins == b""
    assert set(found.ids) == {*(bytes([n]) for n in range(256)), b" t", b"he", b" the", "é".encode()}
    assert found.bytes_of(found.encode(" the thé\n")) == " the thé\n".encode()


def test_a_line_below_is_read_as_a_space_and_bytes_as_bytes() -> None:
    found = spelling_of(sentence_pieces(WORDS))
    assert found.kind == "spaces"
    assert found.begins == b" "
    assert found.tokens[found.ids[b" the"]] == b" the"
    assert {b"\n", b"\xc3", b" ", b" t", "é".encode()} <= set(found.ids)


def test_of_two_tokens_with_one_spelling_the_one_that_is_no_byte_is_kept() -> None:
    tokenizer = sentence_pieces(WORDS)
    assert tokenizer.convert_ids_to_tokens(spelling_of(tokenizer).ids[b"h"]) == "h"


def test_words_have_a_space_before_them_and_pieces_have_none() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert spelling_of(PreTrainedTokenizerFast(tokenizer_object=words)).tokens == {0: b" a", 1: b" b"}
    pieces = Tokenizer(models.WordPiece({"un": 0, "##able": 1}, unk_token="un"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    assert spelling_of(PreTrainedTokenizerFast(tokenizer_object=pieces)).tokens == {0: b" un", 1: b"able"}


def test_special_tokens_are_no_text() -> None:
    found = spelling_of(byte_level(special=["<|user|>"]))
    assert set(found.special.values()) == {"<|end|>", "<|user|>"}
    assert not found.special.keys() & found.tokens.keys()
    assert found.bytes_of(found.encode("a<|user|>")) is None


def test_tokens_that_stand_as_they_are() -> None:
    assert spelling_of(letters(["a", "ab"])).ids == {b"a": 0, b"ab": 1}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b" the", ["▁the"]),
        (b"he", ["h", "e"]),
        (b"\n the", ["<0x0A>", "▁the"]),
        ("é".encode(), ["é"]),
        (b"t h", ["t", "▁h"]),
    ],
)
def test_a_fragment_has_no_space_before_it(text: bytes, tokens: list[str]) -> None:
    tokenizer = sentence_pieces(WORDS)
    found = spelling_of(tokenizer)
    assert tokenizer.convert_ids_to_tokens(found.fragment(text)) == tokens
    assert found.bytes_of(found.fragment(text)) == text


@pytest.mark.parametrize("tokenizer", [byte_level(MERGES), sentence_pieces(WORDS)], ids=["bytes", "spaces"])
@pytest.mark.parametrize("text", [b"\xc3", b"\xa9 the", b"a\xe6\x97", " the thé 日本\n\n".encode()])
def test_fragments_are_their_bytes_also_where_these_are_no_characters(
    tokenizer: PreTrainedTokenizerFast, text: bytes
) -> None:
    found = spelling_of(tokenizer)
    assert found.bytes_of(found.fragment(text)) == text
    assert list(found.fragments([text, b"a"])) == [found.fragment(text), found.fragment(b"a")]


def test_a_text_that_a_normaliser_changes_is_spelled_as_it_is() -> None:
    found = spelling_of(byte_level(MERGES, nfc=True))
    apart = "the\u0301".encode()  # e and an accent, which the normaliser makes one letter
    assert found.bytes_of(found.encode(apart.decode())) != apart
    assert found.bytes_of(found.fragment(apart)) == apart


def test_a_text_that_says_the_name_of_a_special_token_is_spelled_in_letters() -> None:
    found = spelling_of(byte_level())
    assert found.encode("<|end|>") == [0]
    assert found.bytes_of(found.fragment(b"<|end|>")) == b"<|end|>"


def test_what_has_no_spelling_is_unknown() -> None:
    tokenizer = letters(["a", "<?>"], eos="<?>")
    assert spelling_of(tokenizer).fragment(b"aba") == [0, 1, 0]


def test_names_of_bytes() -> None:
    assert (byte_of("<0x0A>"), byte_of("<0xZZ>"), byte_of("<0x0A"), byte_of("a")) == (b"\n", None, None, None)


HELLO = [{"role": "user", "content": "hello you"}]
TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}go{% endif %}"
)


def tokenizer(template: str | dict[str, str] | None = TEMPLATE, *words: str) -> PreTrainedTokenizerFast:
    """Words, and a BOS before every text that is encoded as it stands."""
    names = ["<s>", "</s>", "?", "hello", "you", "go", "on", *words]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="?")
    made.chat_template = template
    return made


def test_a_template_that_writes_a_bos_gets_no_second_one() -> None:
    found = tokenizer()
    assert found("hello").input_ids == [0, 3], "what a plain text gets"
    assert TokenizerChat(found).ids(TEMPLATE, HELLO, {}) == [0, 3, 4, 5]
    assert TokenizerChat(found).ids(TEMPLATE.removeprefix("{{ bos_token }} "), HELLO, {}) == [3, 4, 5]


def test_an_answer_is_text_without_special_tokens() -> None:
    assert TokenizerChat(tokenizer()).text([3, 4, 1]) == "hello you"


@pytest.mark.parametrize(
    ("template", "own"),
    [(TEMPLATE, TEMPLATE), (None, None), ({"rag": "x"}, None), ({"default": "y", "rag": "x"}, "y")],
)
def test_a_tokenizer_has_a_template_or_none(template: str | dict[str, str] | None, own: str | None) -> None:
    assert TokenizerChat(tokenizer(template)).own == own


def test_switches_reach_the_template() -> None:
    template = "{% if enable_thinking %}on{% else %}go{% endif %}"
    chat = TokenizerChat(tokenizer())
    assert [chat.ids(template, HELLO, {"enable_thinking": one}) for one in (True, False)] == [[6], [5]]


def test_the_date_of_a_template_is_the_same_on_every_day() -> None:
    day, month, year = DATE.split()
    chat = TokenizerChat(tokenizer(None, day, month, year))
    assert chat.ids('\n{{ strftime_now("%d %b %Y") }}', HELLO, {}) == [7, 8, 9]
    assert (
        chat.ids('{% if strftime_now is defined %}{% set d = strftime_now("%B") %}{{ d }}{% endif %} go', HELLO, {})[-1]
        == 5
    )


@pytest.mark.parametrize(
    ("template", "line"),
    [("{{ raise_exception('System role not supported') }}", "System role not supported"), ("{% if %}", "Expected"),
     ("{{ messages[3].content }}", "list object has no element 3"), ("{% for i in range(10**9) %}{% endfor %}", "")],
)  # fmt: skip
def test_a_template_that_fails_is_one_line(template: str, line: str) -> None:
    with pytest.raises(UsageError, match=r"^the chat template does not render these messages \(") as caught:
        TokenizerChat(tokenizer()).ids(template, HELLO, {})
    assert line in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("template", "line"),
    [("{{ 'a' * 3000000000 }}", "it takes more than 512 MiB of memory"),
     ("{{ '%1000000000d' % 5 }}", "it takes more than 512 MiB of memory"),
     ("{{ 'a' * 300000 }}", "it writes 300,000 letters, where 66,"),
     ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 0.5 seconds"),
     ("{{ 1.5|round(999999999, 'ceil') }}", "more than 0.5 seconds")],
)  # fmt: skip
def test_a_template_without_an_end_is_one_line(template: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "SERVE", tokenizers.SERVE.replace("; t.serve", "; t.SECONDS = 0.5; t.serve"))
    monkeypatch.setattr(tokenizers, "SECONDS", 0.5)
    monkeypatch.setattr(tokenizers, "_renderer", cache(tokenizers._renderer.__wrapped__))
    with pytest.raises(UsageError, match=r"^the chat template does not render these messages \(it ") as caught:
        TokenizerChat(tokenizer()).ids(template, HELLO, {})
    assert line in str(caught.value)
    assert TokenizerChat(tokenizer()).ids("go", HELLO, {}) == [5], "the next one is rendered"


def test_an_interrupted_template_answers_no_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    found = TokenizerChat(tokenizer())
    assert found.ids("go", HELLO, {}) == [5]
    child = tokenizers._renderer()
    with monkeypatch.context() as patch:
        patch.setattr(child.stdin, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.ids("on", HELLO, {})
    assert child.wait(5) == -signal.SIGKILL
    assert found.ids("go", HELLO, {}) == [5]


def interrupted() -> str:
    raise KeyboardInterrupt


def test_a_text_that_no_tokenizer_takes_is_one_line() -> None:
    with pytest.raises(UsageError, match="does not render these messages"):
        TokenizerChat(tokenizer()).ids(TEMPLATE, [{"role": "user", "content": "\ud800"}], {})


def test_an_end_that_the_generation_config_does_not_know_is_said() -> None:
    (line,) = runs_on(tokenizer(), [7])
    assert "ends a turn with '</s>' (1), which the generation config does not name among [7]" in line
    assert runs_on(tokenizer(), [7, 1]) == []
    assert runs_on(tokenizer(None), [7]) == []


# --- the real thing ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_chat_has_the_tokens_of_transformers() -> None:
    if "SPECBENCH_SMOLLM2" not in os.environ:
        pytest.skip("SPECBENCH_SMOLLM2 names no folder with smollm2-135m")
    found = AutoTokenizer.from_pretrained(Path(os.environ["SPECBENCH_SMOLLM2"], "smollm2-135m"))
    chat = TokenizerChat(found)
    told = [*HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    ids = chat.ids(str(chat.own), told, {})
    assert ids == found.apply_chat_template(told, add_generation_prompt=True, return_dict=False)
    assert found.decode(ids).endswith("<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    assert runs_on(found, [2]) == []
