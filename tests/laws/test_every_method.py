"""What holds for every method file, found by itself: rows, budgets, prompts and seeds decide alone what a decode emits.

Every model of a file is a small random network in float64, so caches are part of what is tested.
"""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specbench.decoding.decode import begin, buffer_length, decode, decode_batches
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import methods, needs, nests, read_method
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.decoding.rounds import Replayed, Whole
from specbench.metrics import Trace
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.decoding.test_replay import Late
from tests.support.rounding import same_texts
from tests.support.tiers import NAMES, bigrams, compiled, seen, static_methods, whole
from tests.support.tiny import CPU, network

V, K, NEW, EOS = 12, 3, 14, (7,)
GREEDY, SAMPLED = Sampling(0), Sampling(1.0, top_p=0.9)
PROMPTS = ((1, 2, 3, 1, 2), (4,), (5, 5, 6, 1, 5, 8, 9, 5), (2, 3))
LEARNING = {"online", "online-early-exit"}  # their drafters keep what they have learned
REMEMBERING = ("Suffix", "Recycling")  # these what they have seen, by `carry`; SWIFT's window is too long for this
every = pytest.mark.parametrize("name", methods())
laws = pytest.mark.parametrize("law", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def made(name: str, law: Sampling, fixed: bool = False, dtype: torch.dtype = torch.float64) -> Speculate:
    """The method over networks: the target has one of its own, all other models share another."""
    roles = {role: int(role != "target") for role in needs(name)}
    models = {role: Causal(network("llama", V, seed, dtype, 4), law, V, fixed) for role, seed in roles.items()}
    return build(name, models, K)


def decoded(method: Speculate, number: int, new: int = NEW, seed: int | None = None) -> Trace:
    """One prompt alone, with the seed of its number unless given."""
    rng = seeded([number if seed is None else seed], CPU)
    (trace,) = decode(method, PROMPTS[number : number + 1], new=new, eos=EOS, rng=rng, device=CPU)
    return trace


@cache
def alone(name: str, law: Sampling) -> list[Trace]:
    """Every prompt by a method of its own."""
    return [decoded(made(name, law), number) for number in range(len(PROMPTS))]


def streamed(method: Speculate, rows: int, **more: Any) -> list[Trace]:
    return decode_batches(method, PROMPTS, range(len(PROMPTS)), rows=rows, new=NEW, eos=EOS, device=CPU, **more)


def tokens(traces: Iterable[Trace]) -> list[tuple[int, ...]]:
    return [trace.tokens for trace in traces]


def test_the_prompts_meet_an_end_token_and_the_limit() -> None:
    assert len({len(trace.tokens) for trace in alone("baseline", GREEDY)}) > 1


@every
def test_greedy_text_is_the_baselines(name: str) -> None:
    assert tokens(alone(name, GREEDY)) == tokens(alone("baseline", GREEDY))


@pytest.mark.processor
@every
def test_greedy_text_in_float32_parts_from_the_baselines_at_near_ties_alone(name: str) -> None:
    method, baseline = (made(one, GREEDY, dtype=torch.float32) for one in (name, "baseline"))
    found, expected = (tokens(decoded(one, number) for number in range(len(PROMPTS))) for one in (method, baseline))
    same_texts(PROMPTS, expected, found, network("llama", V, 0, torch.float32, 4))


@laws
@every
def test_rows_of_a_batch_decode_as_they_do_alone(name: str, law: Sampling) -> None:
    """Rows that come and go, too. A round that the host counts draws by the rows beside it, so that only greedy text
    is the same there; a static one gives the same tokens and counts."""
    static, expected = made(name, law).drafter.static, alone(name, law)
    if law is GREEDY or static:
        found = [streamed(made(name, law), rows) for rows in (2, len(PROMPTS) + 1)]
        assert [tokens(traces) for traces in found] == [tokens(expected)] * 2
        assert not static or [list(map(seen, traces)) for traces in found] == [list(map(seen, expected))] * 2


@every
def test_a_budget_or_a_limit_cuts_what_a_row_can_use(name: str) -> None:
    """By the limit of new tokens, wherever in a round it falls, and by the host's budget for a round."""
    whole = tokens(alone(name, GREEDY))[0]
    for new in range(1, K + 3):
        trace = decoded(made(name, GREEDY), 0, new)
        assert trace.tokens == whole[:new]
        assert sum(done.emitted for done in trace.rounds) == len(trace.tokens)
        assert all(done.accepted <= done.usable for done in trace.rounds)
    method = made(name, SAMPLED)
    for budget in (0, 1, 2, None):
        context = begin(PROMPTS[:3], NEW, method.drafter.room, EOS, CPU)
        context.last[0], context.live[1] = context.pos[0] + 2, False  # one draft and a token after it; none
        method.start(context)
        draft = method.drafter.propose(context, budget, seeded(range(3), CPU))
        levels = torch.tensor(draft.tree.topology.depths, dtype=torch.long)
        there = torch.ones_like(draft.tree.ids, dtype=torch.bool) if draft.valid is None else draft.valid
        deepest = [max(levels[row].tolist(), default=0) for row in there]
        usable = 2 if nests(name) else 1  # an inner level emits up to the limit
        assert deepest[0] <= min(usable, NEW if budget is None else budget)
        assert deepest[1] == 0
        assert deepest[2] <= (method.drafter.depth if budget is None else budget)
        assert draft.tree.size <= method.drafter.room


@every
def test_a_prompt_knows_nothing_of_the_one_before_it_unless_it_is_carried(name: str) -> None:
    method, fresh = made(name, SAMPLED), list(map(seen, alone(name, SAMPLED)))
    assert (method.carries is not None) == (name in LEARNING)
    once = [seen(decoded(method, number)) for number in range(len(PROMPTS))]
    assert once == fresh if method.carries is None else once[0] == fresh[0]
    if method.carries is not None:
        method.carries.forget()
        assert [seen(decoded(method, number)) for number in range(len(PROMPTS))] == once


def carrying(value: Any) -> Any:
    """A composition in which every part that can carry what it has seen does."""
    if not isinstance(value, dict):
        return value
    return {
        key: {**carrying(inner), "carry": True} if key in REMEMBERING else carrying(inner)
        for key, inner in value.items()
    }


@pytest.mark.parametrize("name", [name for name in methods() if carrying(read_method(name)) != read_method(name)])
def test_what_is_carried_stays_until_it_is_forgotten(name: str, tmp_path: Path) -> None:
    file = tmp_path / "carrying.yaml"
    file.write_text(yaml.safe_dump(carrying(read_method(name))))
    method, fresh = made(str(file), GREEDY), list(map(seen, alone(name, GREEDY)))
    assert method.carries is not None
    first, second = ([decoded(method, number) for number in range(len(PROMPTS))] for _ in range(2))
    assert seen(first[0]) == fresh[0]
    assert tokens(first) == tokens(second) == tokens(alone(name, GREEDY))
    assert list(map(seen, second)) != fresh
    method.carries.forget()
    assert list(map(seen, (decoded(method, number) for number in range(len(PROMPTS))))) == list(map(seen, first))


@every
def test_the_same_seed_gives_the_same_text_and_another_one_another(name: str) -> None:
    again = [decoded(made(name, SAMPLED), number) for number in (0, 2)]
    assert list(map(seen, again)) == [seen(alone(name, SAMPLED)[number]) for number in (0, 2)]
    assert len({decoded(made(name, SAMPLED), 0, seed=seed).tokens for seed in range(3)}) > 1


def replayed(method: Speculate, length: int) -> Replayed:
    return Replayed(method, length, (24, length), lambda play: play, lambda play: Late(play, []))


def in_place(method: Speculate, length: int) -> Whole:
    return Whole(method, length, (24, length), lambda play: play)


KINDS = {"in place": in_place, "read late": replayed}
# Both kinds and both laws of every method, in pairs that change from one method to the next.
PLAYED = [
    pytest.param(name, kind, law, id=f"{name}, {said}")
    for number, name in enumerate(NAMES)
    for (said, kind), law in zip(KINDS.items(), (GREEDY, SAMPLED)[:: 1 - 2 * (number % 2)], strict=True)
]


@pytest.mark.parametrize(("name", "kind", "law"), PLAYED)
def test_rounds_that_are_played_again_are_those_step_by_step(
    name: str, kind: Callable[[Speculate, int], Whole | Replayed], law: Sampling
) -> None:
    """On buffers that stay where they are, one stream after the other."""
    method, rows = made(name, law, fixed=True), 2
    length = buffer_length(max(map(len, PROMPTS)), NEW, method.drafter.room)
    rounds = kind(method, length)
    rounds.prime(begin([[0, 0]] * rows, 1, method.drafter.room, EOS, CPU, length), seeded([0] * rows, CPU))
    for _ in range(2):
        assert list(map(seen, streamed(method, rows, rounds=rounds))) == list(map(seen, alone(name, law)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jacobi", "lookahead", "recycling"])
def test_a_compiled_round_keeps_what_a_drafter_remembers_where_it_was(name: str) -> None:
    """One text after the other, by drafters that change tensors of their own in a round."""
    plain, method = (static_methods(bigrams(), K)[name] for _ in range(2))
    rounds = whole(method, compiled("aot_eager"), longest=4, new=12)
    for prompt in ([1, 2, 3, 4], [5], [1, 2, 3, 4]):
        found, expected = (
            decode(one, [prompt], new=12, eos=(), rng=seeded([1], CPU), device=CPU, rounds=how)
            for one, how in ((method, rounds), (plain, None))
        )
        assert list(map(seen, found)) == list(map(seen, expected))
