"""The checks of test_models_exact fail where they must: cache, positions, masks, windows, each broken in one place."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.models.network import caches, passes
from specbench.models.network.causal import Causal
from specbench.models.network.passes import Composer, Pass
from tests.laws import test_models_exact as exact
from tests.laws.test_models_exact import chain_error, law_error, tree_error
from tests.support.random_histories import RAGGED
from tests.support.tiny import TOLERANCE, network

CAUGHT = 1e-9
TREE_MASK, CAUSAL_MASK = passes.tree_mask, passes.causal_mask
Check = Callable[..., float]
Mutate = Callable[[pytest.MonkeyPatch], type[Causal]]


def check_chain(model: type[Causal], name: str, refeed: int = 0) -> float:
    return chain_error(network(name, vocab=5), refeed, model)


def check_tree(model: type[Causal], name: str, refeed: int = 0) -> float:
    return tree_error(network(name, vocab=5), refeed, model)


def check_law(model: type[Causal], name: str, together: bool = False) -> float:
    prompts = RAGGED if together else RAGGED[:1]
    pair = partial(law_error, name, name, new=3, prompts=prompts, together=together, model=model)
    return min(pair(Rejection()), pair(TokenMatch()))


# A prefill asks for the last row only (keep = 1); the other passes belong to rounds.


def passing(change: Callable[[Pass, bool], Pass]) -> type[Causal]:
    """Every pass as `change` makes it; it is told whether the pass belongs to a round."""

    class Changed(Causal):
        def _forward(self, one: Pass, keep: int = 0) -> Tensor:
            return super()._forward(change(one, keep == 0), keep)

    return Changed


def seeing(change: Callable[[int | None, Any], int | None]) -> type[Causal]:
    """The window of every kind of layer as `change` makes it of the window and the network's description."""

    class Changed(Causal):
        def windows(self) -> dict[str, int | None]:
            return {name: change(window, self.config) for name, window in super().windows().items()}

    return Changed


WritesOneSlotBehind = passing(lambda one, of_a_round: replace(one, slots=one.slots + of_a_round))
CountsPositionsFromOne = passing(lambda one, of_a_round: replace(one, positions=one.positions + of_a_round))
PutsTreesAtTheirSlots = passing(lambda one, _: replace(one, positions=one.slots))
SharesTheSlotsOfTheFirstRow = passing(lambda one, _: replace(one, slots=one.slots[:1].expand_as(one.slots)))
SeesOneTokenMore = seeing(lambda window, _: window and window + 1)
SeesOneTokenLess = seeing(lambda window, _: window and window - 1)
SeesEverything = seeing(lambda *_: None)
SlidesInEveryLayer = seeing(lambda _, config: config.sliding_window)


class NeverFeedsAgain(Causal):
    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return super().probs(context, tree)


class NeverSettles(Causal):
    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return


class SettlesOneSlotShort(Causal):
    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        super().settle(start - 1, tree, verdict)


def rolls_back_one_short(patch: pytest.MonkeyPatch) -> type[Causal]:
    """The first token of a pass finds its slot taken: what was there stays, be it a token that was rejected."""

    class Layer(caches.RowStaticLayer):
        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                return super().update(key_states, value_states)
            first = self.slots.index[:, None, :1, None]
            index = first.expand(-1, key_states.shape[1], -1, key_states.shape[3])
            stale = [store.gather(2, index) for store in (self.keys, self.values)]
            super().update(key_states, value_states)
            return self.keys.scatter_(2, index, stale[0]), self.values.scatter_(2, index, stale[1])

    patch.setattr(caches, "RowStaticLayer", Layer)
    return Causal


def feeds_the_draft_one_token(patch: pytest.MonkeyPatch) -> type[Causal]:
    """Right unless everything was accepted: then the last drafted token was committed but never fed."""
    committed = Composer.committed
    patch.setattr(Composer, "committed", lambda self, context, tokens: committed(self, context, 1))
    return Causal


def forgets_the_ancestors(patch: pytest.MonkeyPatch) -> type[Causal]:
    patch.setattr(passes, "ancestors", lambda parents, device: torch.ones(len(parents), len(parents)).tril().bool())
    return Causal


def slides_by_slot(patch: pytest.MonkeyPatch) -> type[Causal]:
    def by_slot(fed: Tensor, tree: TokenTree, length: int, window: int | None = None) -> Tensor:
        slots = torch.cat([fed, fed[:, -1:] + 1 + torch.arange(tree.size)], 1)
        return TREE_MASK(fed, tree, length) & CAUSAL_MASK(slots, length, window)

    patch.setattr(passes, "tree_mask", by_slot)
    return Causal


def shows_the_rubbish_of_shorter_rows(patch: pytest.MonkeyPatch) -> type[Causal]:
    def to_the_longest(positions: Tensor, length: int, window: int | None = None) -> Tensor:
        return CAUSAL_MASK(positions.amax(0, keepdim=True).expand_as(positions), length, window)

    patch.setattr(passes, "causal_mask", to_the_longest)
    return Causal


def just(model: type[Causal]) -> Mutate:
    return lambda patch: model


CHAIN, TREE, LAW = check_chain, check_tree, check_law
REFEED = partial(check_chain, refeed=1)
TREE_REFEED = partial(check_tree, refeed=1)
RAGGED_LAW = partial(check_law, together=True)
# A draft with a wrong cache is slower, not wrong: its rows are still those its tokens were drawn from. So only the
# checks on rows can see it. With rotary positions a shift of all tokens changes nothing, hence the prompts before it.
MUTANTS: list[tuple[str, Mutate, Check, str]] = [
    ("rollback one short", rolls_back_one_short, CHAIN, "llama"),
    ("rollback one short", rolls_back_one_short, TREE, "opt"),
    ("rollback one short", rolls_back_one_short, LAW, "gpt2"),
    ("slot off by one", just(WritesOneSlotBehind), CHAIN, "llama"),
    ("slot off by one", just(WritesOneSlotBehind), TREE, "neox"),
    ("slot off by one", just(WritesOneSlotBehind), LAW, "qwen3"),
    ("position off by one", just(CountsPositionsFromOne), CHAIN, "llama"),
    ("position off by one", just(CountsPositionsFromOne), TREE, "gpt2"),
    ("position off by one", just(CountsPositionsFromOne), LAW, "llama"),
    ("slots of the first row", just(SharesTheSlotsOfTheFirstRow), CHAIN, "llama"),
    ("slots of the first row", just(SharesTheSlotsOfTheFirstRow), RAGGED_LAW, "gpt2"),
    ("rubbish seen", shows_the_rubbish_of_shorter_rows, CHAIN, "llama"),
    ("rubbish seen", shows_the_rubbish_of_shorter_rows, RAGGED_LAW, "gpt2"),
    ("draft fed one token", feeds_the_draft_one_token, CHAIN, "llama"),
    ("draft fed one token", feeds_the_draft_one_token, CHAIN, "gpt2"),
    ("no refeed", just(NeverFeedsAgain), REFEED, "llama"),
    ("no refeed", just(NeverFeedsAgain), TREE_REFEED, "mistral"),
    ("no ancestors", forgets_the_ancestors, TREE, "llama"),
    ("positions by slot", just(PutsTreesAtTheirSlots), TREE, "llama"),
    ("positions by slot", just(PutsTreesAtTheirSlots), TREE, "opt"),
    ("no settling", just(NeverSettles), TREE, "llama"),
    ("settles one short", just(SettlesOneSlotShort), TREE, "llama"),
    ("window by slot", slides_by_slot, TREE, "mistral"),
    ("window by slot", slides_by_slot, TREE, "gemma3"),
    ("window one more", just(SeesOneTokenMore), CHAIN, "mistral"),
    ("window one more", just(SeesOneTokenMore), TREE, "gemma3"),
    ("window one more", just(SeesOneTokenMore), LAW, "gemma2"),
    ("window one less", just(SeesOneTokenLess), CHAIN, "gemma3"),
    ("window one less", just(SeesOneTokenLess), TREE, "mistral"),
    ("window one less", just(SeesOneTokenLess), LAW, "mistral"),
    ("no window", just(SeesEverything), LAW, "mistral"),
    ("window everywhere", just(SlidesInEveryLayer), CHAIN, "gemma2"),
    ("window everywhere", just(SlidesInEveryLayer), LAW, "gemma3"),
]


# check: the test that it is the check of
TESTS: dict[Check, Callable[..., None]] = {
    check_chain: exact.test_rows_along_chains_do_not_depend_on_what_was_rolled_back,
    check_tree: exact.test_rows_of_trees_are_those_of_every_path_alone_before_and_after_settling,
    check_law: exact.test_every_architecture_emits_its_own_law,
}


def plain(check: Check) -> Check:
    return check.func if isinstance(check, partial) else check


def label(check: Check) -> str:
    return plain(check).__name__.removeprefix("check_")


def case(what: str, mutate: Mutate, check: Check, name: str) -> Any:
    catches = pytest.mark.mutant(test=TESTS[plain(check)])
    quick = plain(check) is not check_law and name in ("llama", "mistral")
    marks = [catches] if quick else [catches, pytest.mark.slow]
    return pytest.param(mutate, check, name, id=f"{what}, {label(check)}, {name}", marks=marks)


@pytest.mark.parametrize(("mutate", "check", "name"), [case(*mutant) for mutant in MUTANTS])
def test_a_mutant_is_caught_and_the_original_is_not(
    mutate: Mutate, check: Check, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(Causal, name) <= TOLERANCE
    assert check(mutate(monkeypatch), name) > CAUGHT
