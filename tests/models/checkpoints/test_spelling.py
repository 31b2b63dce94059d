"""Tokens as bytes: what every kind of tokenizer writes, from anywhere in a text, and what has no spelling."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specbench.models.checkpoints.tokenizers import byte_of, spelling_of
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
