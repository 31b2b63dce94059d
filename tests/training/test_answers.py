"""The target's own answers: every turn and sample, by the project's engine, and the same after a kill."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from specbench.backends.choose import backend_for
from specbench.data.forms import ChatSettings
from specbench.data.loading import load_prompts
from specbench.data.longtext import Encode
from specbench.errors import UsageError
from specbench.metrics import Trace
from specbench.spec import RunSpec
from specbench.training.cache import Example, Origin, TokenCache, cached, read_manifest
from specbench.training.data import Sources, sources
from specbench.training.text import (
    Decode,
    Progress,
    answer_parts,
    answers_origin,
    calls,
    described,
    tokenizer_sha256,
    weights_digest,
)
from tests.support.chats import WORDS, Spelled, give_template
from tests.support.datafiles import jsonl
from tests.support.tinypair import EOS, Pair, save_pair, save_tokenizer

V = 2000


def spelled(text: str) -> list[int]:
    return [ord(c) for c in text]


def talk(tmp_path: Path) -> Sources:
    """Nine texts in three categories, and two conversations of two turns."""
    texts = jsonl(
        tmp_path / "a.jsonl", *[{"id": n, "prompt": "x" * (n + 1), "category": "abc"[n % 3]} for n in range(9)]
    )
    turns = jsonl(tmp_path / "talk.jsonl", {"turns": ["Hi", "And?"]}, {"turns": ["Hm", "Oh"]})
    chat = ChatSettings(Spelled(), answer=4)
    return read([texts, turns], spelled, chat, 100)


def read(names: Sequence[str], encode: Encode, chat: ChatSettings, longest: int | None = None) -> Sources:
    return sources(names, partial(load_prompts, limit=None, seed=0, longest=longest, chat=chat), encode, answered=True)


def origin(found: Sources, **changes: object) -> Origin:
    settings: dict[str, object] = {"kind": "answers", "target": "t", "tokenizer_sha256": "a" * 64, "vocabulary": V,
                                   "prompts_sha256": found.sha256, "together": 4} | changes  # fmt: skip
    return Origin(**settings)  # type: ignore[arg-type]


def test_prompts_that_were_held_out_are_rows_that_are_read_as_they_were(tmp_path: Path) -> None:
    found = talk(tmp_path)
    both = [found.each[0].known_as(found.sets[0].prompts[3]), found.each[1].known_as(found.sets[1].prompts[0])]
    rows = found.rows(both)
    assert rows["prompt"] == [{"id": both[0], "category": "a", "prompt": "xxxx"}]
    assert [row["turns"] for row in rows["turns"]] == [["Hi", "And?"]]
    before = {source.known_as(prompt): prompt for source, _, prompt in found.questions}
    for kind, some in rows.items():
        data = [jsonl(tmp_path / f"{kind}.jsonl", *some)]
        (again,) = read(data, spelled, ChatSettings(Spelled(), answer=4)).sets
        (one,), other = again.prompts, before[some[0]["id"]]
        assert (one.ids, one.later, one.text) == (other.ids, other.later, other.text)


def echo(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
    """Answers that say which prompt they are to, and with which seed."""
    return [Trace((ids[0], ord("a") + seed % 26, ord(".")), ()) for ids, seed in zip(prompts, seeds, strict=True)]


def fill(
    path: Path, found: Sources, decode: Decode = echo, watch: Callable[[Progress], None] = print, **changes: object
) -> TokenCache:
    return cached(path, origin(found, **changes), partial(answer_parts, decode, found, Spelled(), watch), size=0)


def all_of(cache: TokenCache) -> list[Example]:
    return sorted([*cache.train, *cache.held_out], key=lambda one: (one.prompt, list(one.ids)))


# --- which examples ---------------------------------------------------------------------------------------------------


def test_every_turn_is_answered_on_the_answers_before_it(tmp_path: Path) -> None:
    cache = fill(tmp_path / "c", talk(tmp_path))
    said = [(one.prompt, "".join(map(chr, one.ids))) for one in all_of(cache)]
    assert len(said) == cache.manifest.rows == 9 + 2 * 2
    first, second = (text for name, text in said if name == "jsonl:talk.jsonl/row-1")
    answer = first.removeprefix("own>[u]Hi[a]")
    assert (len(answer), answer[0], answer[-1]) == (3, "o", ".")
    assert second.startswith(f"own>[u]Hi[a]{answer}[u]And?[a]")
    assert all(len(one.ids) - one.start == 3 for one in all_of(cache))


def test_categories_are_kept_and_a_set_without_any_is_one(tmp_path: Path) -> None:
    cache = fill(tmp_path / "c", talk(tmp_path))
    assert {one.category for one in cache.train} == {"a", "b", "c", "talk"}
    assert {one.category for one in cache.held_out} == {"a", "b", "c", "talk"}
    assert {one.prompt for one in cache.train}.isdisjoint({one.prompt for one in cache.held_out})


def test_samples_of_a_prompt_have_seeds_of_their_own_and_stay_together(tmp_path: Path) -> None:
    found = talk(tmp_path)
    cache = fill(tmp_path / "c", found, temperature=1.0, samples=3)
    assert cache.manifest.rows == 3 * 13
    asked = [one for some in calls(found, 3, 4) for one in some]
    assert len({one.seed(0) for one in asked} | {one.seed(1) for one in asked}) == 2 * len(asked) == 66
    assert {one.prompt for one in cache.train}.isdisjoint({one.prompt for one in cache.held_out})


def test_prompts_of_about_one_length_are_decoded_together_the_longest_first(tmp_path: Path) -> None:
    lengths = [[len(one.prompt.ids) for one in some] for some in calls(talk(tmp_path), 2, 4)]
    assert [len(some) for some in lengths] == [4, 4, 4, 4, 4, 2]
    flat = [length for some in lengths for length in some]
    assert flat == sorted(flat, reverse=True)


# --- cut off ----------------------------------------------------------------------------------------------------------


def test_a_killed_generation_goes_on_to_the_same_files(tmp_path: Path) -> None:
    found = talk(tmp_path)
    whole = fill(tmp_path / "whole", found)
    calls_made: list[int] = []

    def dying(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
        calls_made.append(len(prompts))
        if len(calls_made) == 3:
            raise KeyboardInterrupt
        return echo(prompts, seeds)

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "killed", found, dying)
    assert read_manifest(tmp_path / "killed").parts == 1
    seen: list[Progress] = []
    again = fill(tmp_path / "killed", found, echo, seen.append)
    assert again.manifest == whole.manifest
    assert all_of(again) == all_of(whole)
    assert [(one.done, one.total) for one in seen] == [(4, 11), (8, 11), (11, 11)]
    assert seen[-1].tokens == 3 * (again.manifest.rows - again.manifest.shards[0].rows)


def test_another_grouping_goes_on_with_that_of_the_beginning(tmp_path: Path) -> None:
    """A larger batch asks for more answers at once, and a cache that was begun keeps its parts."""
    found = talk(tmp_path)
    whole = fill(tmp_path / "whole", found)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "killed", found, echo, lambda one: interrupt(one.done == 8))
    again = fill(tmp_path / "killed", found, together=100)
    assert again.manifest == whole.manifest


def interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


# --- with the engine --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair of its own, as an instruct model."""
    pair = save_pair(tmp_path_factory.mktemp("chatty"))
    give_template(pair.target)
    return pair


def by_engine(path: Path, data: str, samples: int = 2, **settings: object) -> TokenCache:
    """The answers of a target as a job makes them."""
    spec = RunSpec(method="baseline", k=0, dtype="float32", tier="eager", max_new_tokens=9, seed=3, **settings)  # type: ignore[arg-type]
    backend = backend_for([spec])
    chat = ChatSettings(backend.chat, answer=spec.max_new_tokens)
    found = read([data], backend.encode, chat, backend.context - 10)
    backend.load(found.longest)
    assert backend.networks is not None
    networks = backend.networks
    target = networks.network("target")
    about = described(found, backend.describe(), target, networks.tokenizer, networks.width)
    made = answers_origin(about, spec, samples)
    decode = backend.prepare(spec, found.longest)
    assert made.seed == (3 if spec.temperature else 0)
    return cached(path, made, partial(answer_parts, decode, found, backend.chat, print), size=0)


def test_the_engine_answers_in_batches_as_alone(tmp_path: Path, chatty: Pair) -> None:
    rows = [{"id": n, "turns": [" ".join(f"w{i + n}" for i in range(3 + n % 4)), "w7 w8"]} for n in range(6)]
    data, sampling = jsonl(tmp_path / "a.jsonl", *rows), {"target": str(chatty.target), "temperature": 1.0}
    alone = by_engine(tmp_path / "alone", data, **sampling)
    assert all_of(by_engine(tmp_path / "batch", data, batch=4, **sampling)) == all_of(alone)
    assert alone.manifest.rows == 24
    assert (alone.manifest.origin.target, alone.manifest.origin.temperature) == (str(chatty.target), 1.0)
    ended = [one for one in all_of(alone) if one.ids[-1] == EOS]
    assert ended
    assert all(len(one.ids) - one.start == 9 or one.ids[-1] == EOS for one in all_of(alone))
    assert len({tuple(one.ids) for one in all_of(alone)}) > 18, "the samples of a prompt differ"


def test_the_origin_follows_the_tokenizer_and_the_template(tmp_path: Path, chatty: Pair) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"turns": ["w1"]}, {"turns": ["w2"]})
    first = by_engine(tmp_path / "a", data, 1, target=str(chatty.target)).manifest.origin
    give_template(chatty.target, WORDS.replace("w53 ", "w54 "))
    second = by_engine(tmp_path / "b", data, 1, target=str(chatty.target)).manifest.origin
    assert first.chat_template_sha256 != second.chat_template_sha256 != ""
    assert first.tokenizer_sha256 == second.tokenizer_sha256
    save_tokenizer(chatty.target, "v{}")
    other = AutoTokenizer.from_pretrained(chatty.target)
    assert tokenizer_sha256(other) != first.tokenizer_sha256


def test_greedy_answers_have_one_sample() -> None:
    with pytest.raises(UsageError, match="3 samples per prompt are all the same at temperature 0: give a --temp"):
        answers_origin({}, RunSpec(), 3)


def test_other_weights_in_the_same_folder_are_another_target(chatty: Pair) -> None:
    network = LlamaForCausalLM.from_pretrained(chatty.target, dtype=torch.bfloat16)
    before = weights_digest(network)
    assert weights_digest(network.float()) == before, "the type is not the weights"
    network.model.layers[-1].mlp.up_proj.weight.data *= 1.01
    assert weights_digest(network) != before
