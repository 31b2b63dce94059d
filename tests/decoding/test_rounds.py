"""However rounds are run, a seed gives the same tokens: step by step, as whole calls, compiled, in a batch or alone."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.schedule import Confidence, Heuristic, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Drawn, FromUniforms, SeededUniforms, Stream, seeded
from specbench.decoding.rounds import NonFiniteError, Play, Rounds
from specbench.decoding.timing import WallClock
from specbench.metrics import Trace
from specbench.models.execution.compiled import Compiled, Passes
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.sources import Audit
from tests.support.tiers import (
    NAMES,
    NEEDS_COMPILER,
    Ready,
    as_it_is,
    bigrams,
    compiled,
    graphs,
    pair,
    regional,
    seen,
    smallest_pair,
    static_methods,
    whole,
)
from tests.support.toys import CPU

K, NEW = 2, 23
GREEDY, SAMPLED = Sampling(0), Sampling(1.0, top_p=0.9)
ALONE = ([1, 2, 3],)
RAGGED = ([4], [5, 6, 7, 8, 9], [3, 1])
EOS = [10, 17]
F32, F64 = torch.float32, torch.float64
# In float32 no two tokens and no draw and its boundary are closer than 1e-4, but for the draws of ragged rows.
CASES = [("chain", F32, GREEDY, RAGGED), ("chain", F32, SAMPLED, ALONE), ("chain", F64, SAMPLED, RAGGED)]
EACH = quick_or_slow(
    [*CASES, *((name, F64, SAMPLED, RAGGED) for name in NAMES if name != "chain")], lambda *case: case in CASES
)
names = pytest.mark.parametrize("name", NAMES)


def decoded(
    method: Speculate,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    rounds: Rounds | None = None,
    new: int = NEW,
    eos: Sequence[int] = EOS,
) -> list[Trace]:
    return decode(method, prompts, new=new, eos=eos, rng=seeded(seeds, CPU), device=CPU, rounds=rounds)


def check(name: str, dtype: torch.dtype, law: Sampling, prompts: Sequence[Sequence[int]], ready: Ready) -> None:
    """Whole rounds on the same buffers, one text after the other, against every row step by step and alone."""
    stepwise = static_methods(pair("llama", law, dtype, fixed=False), K)[name]
    method = static_methods(pair("llama", law, dtype), K)[name]
    rounds = whole(method, ready, longest=9, new=NEW, rows=len(prompts), eos=EOS)
    texts = [prompts, [[*prompt, 2, 9, 1] for prompt in prompts], prompts[::-1]]
    ends = set()
    for number, text in enumerate(texts):
        seeds = range(10 * number, 10 * number + len(text))
        alone = [decoded(stepwise, [prompt], [seed])[0] for prompt, seed in zip(text, seeds, strict=True)]
        assert [seen(t) for t in decoded(method, text, seeds, rounds)] == [seen(t) for t in alone]
        ends |= {len(trace.tokens) for trace in alone}
    assert len(ends) > 1, "no end token was met"


@pytest.mark.slow
@pytest.mark.processor
@pytest.mark.parametrize(
    ("name", "dtype", "law", "prompts"),
    [
        ("chain", F32, SAMPLED, RAGGED),
        ("chain", F64, GREEDY, ALONE),
        ("token-match", F64, SAMPLED, RAGGED),
        ("baseline", F64, SAMPLED, RAGGED),
    ],
    ids=["chain float32", "chain float64 greedy alone", "match", "baseline"],
)
def test_compiled_rounds_give_the_tokens_of_rows_alone(
    name: str, dtype: torch.dtype, law: Sampling, prompts: tuple[list[int], ...]
) -> None:
    before = graphs()
    check(name, dtype, law, prompts, compiled("aot_eager"))
    assert graphs() == before + 1


@pytest.mark.processor
@pytest.mark.parametrize(("name", "dtype", "law", "prompts"), EACH)
def test_rounds_by_regions_give_the_tokens_of_rows_alone(
    name: str, dtype: torch.dtype, law: Sampling, prompts: tuple[list[int], ...]
) -> None:
    check(name, dtype, law, prompts, regional())


@pytest.mark.slow
@NEEDS_COMPILER
def test_rounds_in_machine_code_give_the_tokens_of_rounds_step_by_step() -> None:
    methods = [static_methods(smallest_pair(SAMPLED, fixed), 1)["chain"] for fixed in (True, False)]
    rounds = whole(methods[0], compiled("inductor"), longest=5, new=NEW, eos=EOS)
    for seed, prompt in enumerate([*RAGGED, *ALONE]):
        fast, slow = decoded(methods[0], [prompt], [seed], rounds), decoded(methods[1], [prompt], [seed])
        assert [seen(t) for t in fast] == [seen(t) for t in slow]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [Heuristic(), Confidence(0.2)], ids=repr)
def test_passes_made_ready_one_by_one_give_the_tokens_of_plain_ones(schedule: Schedule) -> None:
    found = []
    for ready in (False, True):
        models = pair("llama", SAMPLED, F64)
        for model in models.values():
            assert isinstance(model, Causal)
            model.passes = Passes(lambda run, frozen: Compiled(run, CPU, "eager")) if ready else None
        method = static_methods(models, K)["chain"]
        method = Speculate(type(method.drafter)(models["draft"], K, copy.copy(schedule)), method.model, method.verifier)
        found.append([seen(t) for seed in (1, 2) for t in decoded(method, RAGGED, range(seed, seed + 3))])
    assert found[0] == found[1]
    assert len({done[0] for _, rounds in found[0] for done in rounds[:-2]}) > 1, "the schedule never adapted"


# How far passes read.


@dataclass
class Noted:
    """Makes nothing ready; notes which round was called how often."""

    calls: list[int] = field(default_factory=list)

    def __call__(self, play: Play) -> Play:
        number = len(self.calls)
        self.calls.append(-1)  # the first call is that of `prime`

        def noted() -> tuple[Tensor, Tensor]:
            self.calls[number] += 1
            return play()

        return noted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "law"), [("mistral", GREEDY), ("gemma3", SAMPLED)])
def test_how_far_passes_read_changes_nothing(name: str, law: Sampling) -> None:
    found, new, prompts = [], 80, RAGGED
    for reaches in ((128,), (64, 128), (12, 24, 64, 80, 128)):
        method, noted = static_methods(pair(name, law, F64), K)["chain"], Noted()
        rounds = whole(method, noted, longest=9, new=new, rows=len(prompts), reaches=reaches)
        texts = ([[*prompt, 2, 9, 1] for prompt in prompts], prompts)
        traces = [decoded(method, text, range(len(text)), rounds, new, ()) for text in texts]
        found.append([seen(trace) for text in traces for trace in text])
        assert min(noted.calls) > 0, "a reach was never used"
    assert found[0] == found[1] == found[2]


def broken_pair(token: int) -> dict[str, Causal]:
    """A pair whose target gives NaN for a text with the token."""
    models = pair("llama", GREEDY, F64)
    target = models["target"]
    target.network = copy.deepcopy(target.network)
    target.network.model.embed_tokens.weight.data[token] = torch.nan
    return models


@pytest.mark.parametrize("forgets", [True, False], ids=["cleared", "control"])
def test_a_text_that_gave_nan_does_not_spoil_the_next_one(forgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, bad = [1, 2], 31
    good = decoded(static_methods(pair("llama", GREEDY, F64, fixed=False), K)["chain"], [prompt], [0])
    assert bad not in good[0].tokens
    method = static_methods(broken_pair(bad), K)["chain"]
    rounds = whole(method, as_it_is, longest=9, new=NEW, eos=EOS)
    with pytest.raises(NonFiniteError):
        decoded(method, [[1, 2, 3, 4, 5, 6, 7, bad, 2]], [0], rounds)
    if forgets:
        assert [seen(t) for t in decoded(method, [prompt], [0], rounds)] == [seen(t) for t in good]
    else:
        monkeypatch.setattr(RowStaticCache, "clear", lambda self: None)
        with pytest.raises(NonFiniteError):
            decoded(method, [prompt], [0], rounds)


# What a whole round is given, and what it tells of itself.


def test_uniforms_drawn_before_are_those_that_would_have_been_drawn() -> None:
    sizes, seeds = (1, 3, 40, 7, 100), [5, 6]
    before, now = SeededUniforms(seeds, CPU), SeededUniforms(seeds, CPU)
    for _ in range(3):
        drawn = Drawn({stream: before((2, sum(sizes)), stream) for stream in Stream})
        for size in sizes:
            for stream in Stream:  # the streams take turns, as in a round
                shape = (2, size) if size % 2 else (2, size // 2, 2)
                assert torch.equal(drawn(shape, stream), now(shape, stream))


@pytest.mark.slow
@names
def test_every_round_has_uniforms_of_its_own_and_the_same_as_step_by_step(name: str) -> None:
    streams: list[dict[Stream, Tensor]] = []
    for step_by_step in (True, False):
        method = static_methods(bigrams(), K)[name]
        rounds = None if step_by_step else whole(method, as_it_is, longest=2, new=NEW, rows=2)
        audit = Audit(SeededUniforms([1, 2], CPU))
        decode(method, [[1], [2, 3]], new=NEW, eos=(), rng=FromUniforms(audit), device=CPU, rounds=rounds)
        kept = {stream: [v.reshape(2, -1) for s, v in audit.drawn if s is stream] for stream in Stream}
        streams.append({stream: torch.cat(values, 1) for stream, values in kept.items() if values})
    assert streams[0].keys() == streams[1].keys()
    for stream, values in streams[0].items():
        assert torch.equal(values, streams[1][stream])
        assert len(values.unique()) == values.numel()


class Listening(WallClock):
    """A clock whose time is how often it was looked at; notes the order of the laps."""

    def __init__(self) -> None:
        self.looks, self.order = 0, []
        super().__init__(self.look)

    def look(self) -> float:
        self.looks += 1
        return float(self.looks)

    def start(self) -> None:
        super().start()
        self.order = []

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        if not torch.compiler.is_compiling():
            self.order.append(phase)
        super().lap(phase, after)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("baseline", "aot_eager", marks=pytest.mark.slow),
        ("chain", "aot_eager"),
        pytest.param("chain", "inductor", marks=[NEEDS_COMPILER, pytest.mark.slow]),
    ],
)
def test_phases_are_timed_inside_a_compiled_round(name: str, backend: str) -> None:
    clock = Listening()
    method = static_methods(bigrams(), K, clock)[name]
    rounds = whole(method, compiled(backend), longest=2, new=NEW)
    rng = seeded([1], CPU)
    (trace,) = decode(method, [[1]], new=NEW, eos=(), rng=rng, device=CPU, clock=clock, rounds=rounds)
    drafts = ["draft/first", "draft"] if name == "chain" else ["draft"]
    count = len(trace.rounds)
    assert clock.order == ["host", *drafts, "verify", "accept"] * count
    assert trace.spans == dict.fromkeys(clock.order, count) | {"draft": count * len(drafts)}
    behind = 1  # the host's last read, behind the last lap
    assert sum(trace.spans[phase] for phase in ("host", "draft", "verify", "accept")) == trace.seconds - behind
