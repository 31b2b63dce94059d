"""A compiled round emits the law of its target, to 1e-12, over every outcome of its draws.

One call of the compiled function: the rows of its batch are all combinations of outcomes, for all pairs side by side.
The law compared is the joint one of the K + 1 next tokens, shorter blocks completed by the target.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import read_method
from specbench.decoding.types import at
from specbench.decoding.verifiers import rejection
from specbench.models.network.sampling import Sampling
from tests.support.laws import EXACT, autoregressive, carried_on, error
from tests.support.tiers import (
    NEEDS_COMPILER,
    STATIC,
    Given,
    Shapes,
    Tables,
    compiled,
    pair,
    static_methods,
)
from tests.support.tiny import context_of, network, plain_rows
from tests.support.toys import KINDS, PROMPT, nodes, numbers, random_pair, tokens_of

OF_NETWORKS = ("chain", "tree-top", "maxgram", "early-exit-shared")  # every use of a network
Build = Callable[[Tensor], Speculate]  # a method from what tells the rows of its batch apart


def laws(build: Build, targets: list[Tensor], k: int, backend: str) -> list[float]:
    """The error of the law of a compiled round for each of the targets; `build` gets the number of the target [B]."""
    vocab, end = targets[0].shape[1], len(PROMPT) + k + 1
    outcomes, which = combinations(build, len(targets), k)
    method = build(which)
    context = context_of([PROMPT], k + 1, method.drafter.room).select(torch.zeros_like(which))
    method.start(context)
    certain = torch.ones(len(which), dtype=torch.float64)

    def play() -> tuple[Tensor, Tensor]:
        source = Given(outcomes, certain)
        method.advance(context, None, source)
        return context.pos.clone(), source.weight

    pos, weight = compiled(backend)(play)()
    assert set(pos.tolist()) == {len(PROMPT) + n for n in range(k + 1)}, "some length of a block never occurred"
    reached, errors = numbers(context, vocab, nodes(vocab, end)), []
    for number, target in enumerate(targets):
        mass = weight.new_zeros(nodes(vocab, end)).index_add_(0, reached, weight * (which == number))
        law = carried_on(mass, target, end, len(PROMPT))
        errors.append(error(law, autoregressive(target, PROMPT, k + 1)))
    return errors


def combinations(build: Build, targets: int, k: int) -> tuple[Tensor, Tensor]:
    """All outcomes of the draws of a round [B, draws], once for each target, and the number of the target [B]."""
    method, shapes = build(torch.zeros(1, dtype=torch.long)), Shapes()
    context = context_of([PROMPT], k + 1, method.drafter.room)
    method.start(context)
    method.advance(context, None, shapes)
    each = shapes.combinations()
    return each.repeat(targets, 1), torch.arange(targets).repeat_interleave(len(each))


def toy_laws(name: str, vocab: int, k: int, backend: str) -> list[float]:
    """One pair of tables of every kind."""
    pairs = [random_pair(seed, vocab, k + 1) for seed in range(len(KINDS))]
    p, q = (torch.cat(side) for side in zip(*pairs, strict=True))

    def build(which: Tensor) -> Speculate:
        models = {"target": Tables(p, which, len(pairs[0][0])), "draft": Tables(q, which, len(pairs[0][0]))}
        return static_methods(models, k)[name]

    return laws(build, [target for target, _ in pairs], k if name != "baseline" else 0, backend)


@pytest.mark.parametrize("name", STATIC)
def test_a_compiled_round_emits_the_law_of_its_target_if_it_says_so(name: str) -> None:
    backend = "aot_eager" if name in OF_NETWORKS else "eager"  # functions of a graph; its trace takes half as long
    assert (max(toy_laws(name, 3, 2, backend)) <= EXACT) == read_method(name)["lossless"]


@pytest.mark.slow
@NEEDS_COMPILER
def test_so_does_a_round_in_machine_code() -> None:
    assert max(toy_laws("chain", 3, 2, "inductor")) <= EXACT


@pytest.mark.mutant(test=test_a_compiled_round_emits_the_law_of_its_target_if_it_says_so)
def test_a_wrong_rule_is_seen_through_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "left_over", lambda walked: at(walked.tested[-1].left, walked.last))
    assert max(toy_laws("chain", 3, 2, "aot_eager")) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_NETWORKS)
def test_a_compiled_round_of_a_network_emits_the_law_of_the_network(name: str) -> None:
    k, law = 2, Sampling(0.7)
    net = network("llama", vocab=3)
    target = torch.zeros((nodes(3, len(PROMPT) + k), 3), dtype=torch.float64)
    for number in range(1, len(target)):
        target[number] = plain_rows(net, law, 3, [tokens_of(number, 3)])[0, -1]

    def build(_: Tensor) -> Speculate:
        return static_methods(pair("llama", law, torch.float64, vocab=3), 2)[name]

    (found,) = laws(build, [target], k, "aot_eager")
    assert (found <= EXACT) == read_method(name)["lossless"]
