"""Two vocabularies: what is common, which rule joins them, and what one is told of the other's tokens.

A text in two tokenizers' tokens: read anew only at its end, and written so that it goes on where it stands.
"""

import random

import pytest
import torch

from specbench.decoding.protocols import STRETCH, Reading
from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints.vocabularies import Rewriter, Vocabularies, complete
from tests.support.foreign import both, byte_level, letters, sentence_pieces

THE = [("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
PAIR = both(byte_level(THE), sentence_pieces(["▁the", "▁a"], bos="<s>"))


def names(found: list[int]) -> list[str]:
    return list(PAIR.draft.tokenizer.convert_ids_to_tokens(found))


def test_the_same_text_is_common_however_it_is_written() -> None:
    found = {PAIR.target.tokens[ours]: PAIR.draft.tokens[theirs] for ours, theirs in PAIR.words}
    assert all(ours == theirs for ours, theirs in found.items())
    assert {b" ", b"\n", b"\xff", b"h", b" t", b" the"} <= set(found)
    assert b"he" not in found  # the draft has it after a space only


def test_every_id_stands_once_though_a_text_may_have_two_tokens() -> None:
    ours, theirs = zip(*PAIR.common, strict=True)
    assert len(set(ours)) == len(ours) == len(set(theirs))


def test_ends_of_text_mean_the_same_whatever_they_are_called() -> None:
    end, own = PAIR.target.tokenizer.eos_token_id, PAIR.draft.tokenizer.eos_token_id
    assert PAIR.specials == {own: end}
    assert (end, own) in PAIR.common


def test_special_tokens_of_one_name_are_common_and_no_others_are() -> None:
    found = both(byte_level(special=["<|a|>", "<|b|>"]), byte_level(eos="<s>", special=["<|b|>", "<|c|>"]))
    named = {found.draft.special[theirs]: found.target.special[ours] for theirs, ours in found.specials.items()}
    assert named == {"<|b|>": "<|b|>", "<s>": "<|end|>"}


def test_the_shares_are_those_of_both_vocabularies() -> None:
    few = both(byte_level(THE), letters(["a", "b", "zz", "<x>"], [], eos="<x>"))
    assert len(few.common) == 3
    assert few.shares == (3 / 260, 3 / 4)
    assert few.shared == "3 tokens are common, 1.2% of the target's and 75.0% of the draft's"
    assert few.rule == "common"


def test_few_common_tokens_leave_the_strings() -> None:
    words = ["a", *(f"{x}{y}" for x in "aqz" for y in "qzj")]
    few = both(byte_level(THE), letters(words, []))
    assert few.rule == "strings"
    assert both(byte_level(THE), letters(words, []), "common").rule == "common"
    assert both(byte_level(THE), byte_level(), "strings").rule == "strings"


def test_vocabularies_without_a_token_in_common_are_refused_in_one_line() -> None:
    for wanted in ("auto", "common", "strings"):
        with pytest.raises(UnusableModelError, match=r"without a token in common \(2 and 2 tokens\)") as refusal:
            _ = both(letters(["a", "b", "<e>"], eos="<e>"), letters(["c", "d", "<e>"], eos="<e>"), wanted).rule
        assert "\n" not in str(refusal.value)


def test_a_rule_that_gives_nothing_is_refused_by_its_name() -> None:
    spelled = both(letters(["a", "b"]), letters(["ab", "ba"]))
    assert spelled.rule == "strings"
    with pytest.raises(UsageError, match=r"--vocabulary common: .* use --vocabulary strings"):
        _ = both(letters(["a", "b"]), letters(["ab", "ba"]), "common").rule


def test_tokens_beyond_a_head_are_none() -> None:
    pair = both(byte_level(THE), byte_level(THE))
    narrow = type(pair)(pair.target, pair.draft, pair.target_width, 100)
    assert max(theirs for _, theirs in narrow.common) == 99
    own = narrow.dictionary()
    assert int(own.pieces.max()) < 100
    assert own.pieces.shape[0] == own.lengths.shape[0] == pair.target_width


def test_what_is_not_common_is_told_in_pieces_which_say_the_same() -> None:
    own = PAIR.dictionary()
    for number, text in PAIR.target.tokens.items():
        said = own.pieces[number, : own.lengths[number]].tolist()
        assert PAIR.draft.bytes_of(said) == text
    assert names(own.pieces[PAIR.target.ids[b"he"], :2].tolist()) == ["h", "e"]


def test_of_a_token_with_many_pieces_the_last_are_told() -> None:
    long = byte_level([("-", "-"), ("--", "--"), ("----", "----")])
    own = both(long, byte_level()).dictionary()
    assert own.most == STRETCH
    assert int(own.lengths.max()) == STRETCH


def test_padding_of_the_head_is_told_as_something() -> None:
    own = both(byte_level(), byte_level(THE), more=3).dictionary()
    assert own.lengths[-3:].tolist() == [1, 1, 1]
    assert own.most == 1


def test_ids_go_there_and_back() -> None:
    own = PAIR.dictionary()
    assert torch.equal(own.back[own.theirs], own.ours)
    assert torch.equal(own.pieces[own.ours, 0], own.theirs)
    assert bool((own.lengths[own.ours] == 1).all())


def test_a_prompt_is_split_as_the_drafts_own_tokenizer_splits_it() -> None:
    text = "the he\n the thé"
    assert PAIR.prompt(PAIR.target.encode(text)) == PAIR.draft.encode(text)
    back = both(sentence_pieces(["▁the", "▁a"]), byte_level(THE))
    assert back.prompt(back.target.encode(text)) == back.draft.encode(text)


def test_special_tokens_of_a_prompt_are_told_by_their_meaning_or_their_name() -> None:
    pair = both(byte_level(THE, special=["<|u|>"]), sentence_pieces(["▁the"]))
    told = pair.prompt(pair.target.encode("<|u|> the<|end|>"))
    assert told[-1] == pair.draft.tokenizer.eos_token_id
    assert pair.draft.bytes_of(told[:-1]) == b"<|u|> the"


def test_a_text_that_does_not_come_back_is_told_all_the_same() -> None:
    pair = both(byte_level(THE), byte_level(nfc=True))
    apart = "the\u0301 x"
    assert pair.draft.bytes_of(pair.prompt(pair.target.encode(apart))) == apart.encode()


def test_an_empty_prompt_has_a_token() -> None:
    assert len(PAIR.prompt([])) == 1


WITHOUT = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "©")]
OTHER = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("l", "o")]
TEXT = "the the a lot thelo a\nthe thé 日本 a the, the a lot of the a the thé\n\n the the a lo the a the the lot"
PAIRS = {
    "bytes": both(byte_level(WITHOUT), byte_level(OTHER, eos="<s>")),
    "spaces": both(sentence_pieces(["▁the", "▁a", "é"]), byte_level(OTHER)),
    "to spaces": both(byte_level(WITHOUT), sentence_pieces(["▁lot", "▁a", "▁the"])),
    "nfc": both(byte_level(WITHOUT, nfc=True), byte_level(OTHER)),
}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def said(pair: Vocabularies, reading: Reading) -> str:
    text = pair.draft.bytes_of([n for n in reading.ids if n in pair.draft.tokens])
    assert text is not None
    return text.decode(errors="replace").removeprefix(pair.draft.begins.decode())


@pairs
def test_what_is_read_step_by_step_is_what_is_read_at_once(pair: Vocabularies) -> None:
    rewriter, ids = Rewriter(pair), pair.target.encode(TEXT)
    steps, at, reading = random.Random(0), 5, rewriter.read(ids[:5])
    while at < len(ids):
        at = min(at + steps.randint(1, 4), len(ids))
        reading = rewriter.read(ids[:at], reading)
        assert reading == rewriter.read(ids[:at])
    assert said(pair, reading) == TEXT


@pairs
def test_texts_that_were_taken_back_are_read_as_they_stand(pair: Vocabularies) -> None:
    rewriter, ids = Rewriter(pair), pair.target.encode(TEXT)
    whole = rewriter.read(ids)
    for end in (len(ids) - 1, 40, 20, 3, 1):
        other = [*ids[:end], *ids[2:5]]
        assert rewriter.read(other, whole) == rewriter.read(other)


@pairs
def test_only_the_end_of_a_long_text_is_split_again(pair: Vocabularies, monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter, ids = Rewriter(pair), pair.target.encode(TEXT * 20)
    reading = rewriter.read(ids[:-1])
    sizes: list[int] = []
    whole = type(pair.draft).fragment
    monkeypatch.setattr(type(pair.draft), "fragment", lambda self, text: sizes.append(len(text)) or whole(self, text))
    rewriter.read(ids, reading)
    rewriter.write(reading, reading.ids[-3:])
    assert max(sizes) < 100


@pairs
def test_joints_are_places_before_which_both_say_the_same(pair: Vocabularies) -> None:
    reading = Rewriter(pair).read(pair.target.encode(TEXT))
    assert len(reading.joints) > 10
    for place, own in reading.joints[1:]:
        ours, theirs = pair.target.bytes_of(reading.text[:place]), pair.draft.bytes_of(reading.ids[:own])
        assert ours is not None
        assert theirs is not None
        assert ours.removeprefix(pair.target.begins) == theirs.removeprefix(pair.draft.begins)


@pairs
def test_a_draft_of_the_text_itself_is_written_as_the_target_writes_it(pair: Vocabularies) -> None:
    """A draft that goes on with the text to its very end is written as the target's own tokens of it."""
    rewriter, ids = Rewriter(pair), pair.target.encode(TEXT)
    whole = rewriter.read(ids)
    for place, own in whole.joints[8:-1]:
        written = rewriter.write(rewriter.read(ids[:place]), whole.ids[own:])
        assert pair.target.bytes_of(written) == pair.target.bytes_of(ids[place:])
        assert written == ids[place:]


BYTES = PAIRS["bytes"]


def of_draft(text: str | bytes) -> list[int]:
    return BYTES.draft.fragment(text if isinstance(text, bytes) else text.encode())


def written(text: str | list[int], drafted: list[int]) -> list[bytes]:
    rewriter = Rewriter(BYTES)
    ids = BYTES.target.encode(text) if isinstance(text, str) else text
    return [BYTES.target.tokens[number] for number in rewriter.write(rewriter.read(ids), drafted)]


def test_a_token_that_would_grow_over_the_end_of_the_text_is_written_from_there_on() -> None:
    assert written("a t", of_draft("he the")) == [b"he", b" the"]


def test_a_character_that_has_not_ended_is_left_out() -> None:
    assert written("a", of_draft(" 日".encode()[:3])) == [b" "]
    assert written("a", of_draft("日".encode()[:2])) == []


def test_a_character_that_the_text_has_begun_is_ended() -> None:
    begun = [*BYTES.target.encode("a"), BYTES.target.ids[b"\xe6"]]
    assert written(begun, of_draft(b"\x97\xa5 the")) == [b"\x97", b"\xa5", b" the"]
    assert Rewriter(BYTES).read(begun).ids[-1] == BYTES.draft.ids[b"\xe6"]


def test_the_drafts_end_of_text_ends_the_chain_as_the_targets() -> None:
    rewriter = Rewriter(BYTES)
    end, own = BYTES.target.tokenizer.eos_token_id, BYTES.draft.tokenizer.eos_token_id
    found = rewriter.write(rewriter.read(BYTES.target.encode("a")), [*of_draft(" the"), own, *of_draft(" a")])
    assert found == [*BYTES.target.encode(" the"), end]


def test_a_special_token_that_the_target_lacks_ends_the_chain_before_it() -> None:
    pair = both(byte_level(WITHOUT), byte_level(OTHER, special=["<|think|>"]))
    rewriter = Rewriter(pair)
    drafted = pair.draft.encode(" the<|think|> a")
    assert rewriter.write(rewriter.read(pair.target.encode("a")), drafted) == pair.target.encode(" the")


def test_what_stands_before_a_special_token_is_not_merged_with_what_follows() -> None:
    text = [*BYTES.target.encode("a t"), BYTES.target.tokenizer.eos_token_id]
    assert written(text, of_draft("he")) == [b"he"]


def test_a_text_that_says_the_name_of_a_special_token_stays_text() -> None:
    assert b"".join(written("a", of_draft("<|end|>"))) == b"<|end|>"


def test_what_the_target_cannot_spell_ends_the_chain() -> None:
    pair = both(letters(["a", "b", "<?>"], eos="<?>"), letters(["a", "b", "c", "ab"]))
    rewriter = Rewriter(pair)
    assert rewriter.write(rewriter.read([0]), [3, 1, 2, 0]) == [0, 1, 1]


def test_a_long_text_without_words_is_read_from_a_place_far_behind() -> None:
    ids = BYTES.target.encode("日本" * 100)
    rewriter = Rewriter(BYTES)
    reading = rewriter.read(ids[:-2])
    assert rewriter.joint(reading, len(ids) - 10)[0] > 400
    assert rewriter.read(ids, reading) == rewriter.read(ids)


@pytest.mark.parametrize(
    ("more", "kept"),
    [(b"a", b"a"), (b"\xe6\x97\xa5", b"\xe6\x97\xa5"), (b"a\xe6\x97", b"a"), (b"\xf0\x9f\x99", b""), (b"", b"")],
)
def test_complete_characters(more: bytes, kept: bytes) -> None:
    assert complete(b"x", more) == kept
