"""Which tokens a cut keeps, and that the rows of a cut head are those that its tokens were drawn from, cache or not."""

import copy
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import torch

from specbench.errors import UsageError
from specbench.models.checkpoints import reduced as cuts
from specbench.models.checkpoints.reduced import SHIPPED, Cut, special_tokens
from specbench.models.network import sampling
from specbench.models.network.sampling import ReducedHead, reduce_head
from specbench.models.network.skipping import base_of, chosen, cut_of, with_layers
from tests.laws.mutants import Patch, catches_patch, mutants
from tests.laws.test_models_exact import chain_error, tree_error
from tests.support.tiny import TOLERANCE, network

V, END, CHAT = 12, 11, 10


def encode(text: str) -> list[int]:
    """A token for every letter from a to l; those after it are none of the draft's."""
    return [ord(letter) - ord("a") for letter in text if letter in ascii_lowercase]


def kept(folder: Path, written: str, content: str, name: str = "text.txt", always: Sequence[int] = ()) -> list[int]:
    (folder / name).write_text(content)
    return Cut.read(written.replace("FILE", str(folder / name))).kept(encode, V, always)


# --- which tokens -----------------------------------------------------------------------------------------------------


def test_the_most_frequent_tokens_of_a_text_are_kept(tmp_path: Path) -> None:
    text = "aaa c hhhh ee zz\n" * 3
    assert kept(tmp_path, "2:FILE", text) == [0, 7]
    assert kept(tmp_path, "25%:FILE", text) == [0, 4, 7]
    assert kept(tmp_path, "FILE", text) == [0, 2, 4, 7]
    assert kept(tmp_path, "6:FILE", text) == [0, 1, 2, 3, 4, 7]  # those that never occur: the lowest ids
    assert kept(tmp_path, "2:FILE", text, always=(END,)) == [7, END]
    assert kept(tmp_path, "FILE", text, always=(END,)) == [0, 2, 4, 7, END]


def test_rows_of_json_lines_are_counted_without_names_and_identifiers(tmp_path: Path) -> None:
    rows = [{"id": "kkkkk", "prompt": "cc", "turns": ["d", {"text": "cdd"}], "n": 3}] * 2
    assert kept(tmp_path, "FILE", "\n".join(map(json.dumps, rows)) + "\n\n", "rows.jsonl") == [2, 3]


def test_counts_and_ids_of_a_json_file_are_taken_as_they_are(tmp_path: Path) -> None:
    assert kept(tmp_path, "2:FILE", json.dumps({"3": 2, "5": 7.5, "1": 7}), "counts.json") == [1, 5]
    assert kept(tmp_path, "2:FILE", "[9, 0, 5]", "ids.json") == [0, 9]
    assert kept(tmp_path, "FILE", "[9, 0, 5]", "ids.json") == [0, 5, 9]


@pytest.mark.parametrize("content", ["[12]", "[-1]", "[true]", '{"1": -1}', '{"1": true}', "3", "[", '{"x": 1}'])
def test_a_json_file_with_anything_else_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError) as refused:
        kept(tmp_path, "FILE", content, "wrong.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", ["0", "13", "1"])
def test_a_size_that_does_not_fit_is_refused(size: str) -> None:
    with pytest.raises(UsageError, match="it can have 2"):
        Cut.read(size).kept(encode, V, (END, CHAT))


def test_without_a_file_the_texts_that_ship_are_counted() -> None:
    cut = Cut.read("25%")
    counts = cut.counts(encode, V)
    assert cut.source == SHIPPED
    assert int(counts.min()) > 10, "articles and code have all letters"
    assert cut.kept(encode, V, ()) == sorted(counts.topk(3).indices.tolist())


class Tokenizer:
    all_special_ids = (END,)

    def get_added_vocab(self) -> dict[str, int]:
        return {"<|im_start|>": CHAT, "<far>": 99}


def test_end_and_chat_tokens_are_always_kept(tmp_path: Path) -> None:
    found = kept(tmp_path, "4:FILE", "aaabbbcccddd", always=special_tokens(Tokenizer(), [9]))
    assert found == [0, 9, CHAT, END]


@pytest.mark.parametrize(
    ("name", "base", "cut"),
    [("draft vocabulary 25%", "draft", "25%"), ("target[:2] vocabulary 9:a.txt", "target[:2]", "9:a.txt"),
     ("draft", "draft", None)],
)  # fmt: skip
def test_names_say_which_part_of_a_vocabulary(name: str, base: str, cut: str | None) -> None:
    assert (base_of(name), cut_of(name)) == (base, cut)
    assert cut is None or chosen(name, 3) == [0, 1, 2]


# --- the head ---------------------------------------------------------------------------------------------------------

SOME = (0, 2, 3)


def test_tied_embeddings_stay_whole() -> None:
    whole = network("gemma2", 5)
    assert whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    ids = torch.tensor([[1, 2, 3, 4]])
    before, draft = whole(ids).logits.clone(), reduce_head(with_layers(whole, [0, 1]), SOME)
    assert torch.equal(whole(ids).logits, before)
    assert draft.get_input_embeddings().weight is whole.get_input_embeddings().weight
    assert torch.allclose(draft(ids).logits[..., SOME], before[..., SOME])
    draft.get_output_embeddings().weight.data.zero_()
    assert torch.equal(whole(ids).logits, before), "rows of the embedding were zeroed with those of the head"


def test_fewer_rows_are_computed() -> None:
    draft, products = reduce_head(copy.deepcopy(network("llama", 5)), SOME), []
    head: ReducedHead = draft.get_output_embeddings()
    narrow = head.narrow
    head.narrow = lambda hidden: products.append(narrow(hidden)) or products[-1]  # type: ignore[method-assign]
    draft(torch.tensor([[1, 2]]))
    assert [tuple(made.shape) for made in products] == [(1, 2, len(SOME))]
    assert head.weight.shape[0] == len(SOME)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_rows_through_the_cache_are_those_of_a_plain_pass_in_chains_trees_and_batches(name: str) -> None:
    draft = reduce_head(copy.deepcopy(network(name, 5)), SOME)
    assert chain_error(draft) <= TOLERANCE
    assert tree_error(draft) <= TOLERANCE


def test_a_head_that_was_cut_is_cut_to_what_both_keep() -> None:
    plain, twice = network("llama", 5), copy.deepcopy(network("llama", 5))
    reduce_head(reduce_head(twice, (0, 2, 3, 4)), (1, 2, 4))
    head = twice.get_output_embeddings()
    assert head.ids.tolist() == [2, 4]
    ids = torch.tensor([[1, 2]])
    assert torch.allclose(twice(ids).logits[..., [2, 4]], plain(ids).logits[..., [2, 4]])
    with pytest.raises(UsageError, match="knows 2 tokens, and none of those"):
        reduce_head(twice, (0, 1))


# --- mutants ----------------------------------------------------------------------------------------------------------

MOST, CUT = cuts.most_frequent, sampling.cut


def in_place(head: Any, ids: Sequence[int], name: str) -> ReducedHead:
    """A view of the rows of the embedding, which the first ids happen to be, in the place of a copy."""
    made = CUT(head, ids, name)
    made.weight = torch.nn.Parameter(head.weight.data[: len(made.ids)])
    return made


def by_place(head: Any, ids: Sequence[int], name: str) -> ReducedHead:
    """Of a head that was cut already, the rows by their places, not by their ids."""
    return CUT(torch.nn.Linear(head.weight.shape[1], 5, bias=False), ids, name)


IN_A_FOLDER = test_the_most_frequent_tokens_of_a_text_are_kept, test_end_and_chat_tokens_are_always_kept
MUTANTS: dict[str, Patch] = {
    "keeps the rarest": (cuts, "most_frequent", lambda counts, *rest: MOST(-counts, *rest), IN_A_FOLDER[0]),
    "forgets the end of a text": (cuts, "most_frequent", lambda counts, size, _: MOST(counts, size), IN_A_FOLDER[1]),
    "cuts the embedding too": (sampling, "cut", in_place, test_tied_embeddings_stay_whole),
    "cuts a cut head by its places": (sampling, "cut", by_place, test_a_head_that_was_cut_is_cut_to_what_both_keep),
}


@mutants(MUTANTS)
def test_a_wrong_cut_is_found_out(mutant: Patch, tmp_path: Path) -> None:
    *where, check = mutant
    catches_patch(*where, partial(check, tmp_path) if check in IN_A_FOLDER else check)
