"""The host reads the device once per round, plus what a schedule says it reads; in a steady round it sends nothing.

Counted on a CPU: reads by the operators and methods that would wait for a device, copies by the tensors that are made
of host data. Both make the host wait on CUDA, where `torch.cuda.set_sync_debug_mode` is asked as well.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding.decode import begin, buffer_length, decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Confidence, Constant, Heuristic, Marginal, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter, Verifier
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.rounds import Play, Whole
from specbench.decoding.timing import NullClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Verdict
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.tiny import CPU, network
from tests.support.toys import levels_left

READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal", "aten::masked_select"}
PYTHON_READS = ("tolist", "numpy", "cpu", "__array__")  # on a CPU these pass no operator
COPIES = {"aten::lift_fresh"}  # torch.tensor(...), a list as an index; not single numbers, which CUDA fills in itself
V, K, ROOM, NEW = 32, 4, 6, 40
START = 2  # reads of a prefill, one per model


@dataclass
class Counts(TorchDispatchMode):
    """Reads and copies so far."""

    reads: int = 0
    copies: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode an operator that is made of others would hide them
            result = func.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
        self.reads += func.name().split(".")[0] in READS
        self.copies += func.name().split(".")[0] in COPIES and args[0].ndim > 0
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counts]:
    counts = Counts()

    def counting(method: Any) -> Any:
        def wrapped(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            counts.reads += 1
            return method(self, *args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch, counts:
        for name in PYTHON_READS:
            patch.setattr(torch.Tensor, name, counting(getattr(torch.Tensor, name)))
        yield counts


@dataclass
class Marks(NullClock):
    """Notes how often the host has read when a timed region begins and when it ends."""

    counts: Counts
    at: list[int] = field(default_factory=list)

    def start(self) -> None:
        self.at.append(self.counts.reads)

    def stop(self) -> tuple[float, dict[str, float]]:
        self.at.append(self.counts.reads)
        return super().stop()


@dataclass(frozen=True)
class AnyTree:
    """Some tree, the same in every round, of tokens that lie about."""

    room: int = 6
    static: bool = True
    carries: None = None

    def start(self, context: Context) -> None:
        return

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        return Draft(TokenTree(context.seq[:, :6] % 3, (-1, -1, 0, 0, 1, 4)))

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return


def pair(
    drafter: str,
    verifier: Verifier,
    law: Sampling,
    device: torch.device = CPU,
    schedule: Schedule | None = None,
    fixed: bool = False,
) -> Speculate:
    target, draft = (
        Causal(copy.deepcopy(network("llama", V, seed, torch.float32)).to(device), law, V, fixed) for seed in (0, 1)
    )
    chain = ModelDrafter(draft, K, schedule or Constant())
    drafters: dict[str, Drafter] = {"none": NoDraft(), "model": chain, "tree": AnyTree()}
    return Speculate(drafters[drafter], target, verifier)


methods = pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        ("none", Rejection()),
        ("model", Rejection()),
        ("model", TokenMatch()),
        ("tree", Rejection()),
        ("tree", TokenMatch()),
    ],
    ids=["baseline", "chain", "token-match", "tree", "tree token-match"],
)
laws = pytest.mark.parametrize(
    "law",
    [Sampling(0), Sampling(1.0, top_p=0.9), Sampling(0.7, top_k=9, top_p=0.95, min_p=0.05, eta=0.01)],
    ids=["0", "top-p", "all"],
)


@pytest.mark.parametrize("inference", [False, True])
def test_the_counter_counts(inference: bool) -> None:
    with torch.inference_mode(inference), counted() as counts:
        flag = torch.ones(2)
        for read in (flag.tolist, flag.sum().item, lambda: bool(flag[0]), lambda: int(flag[0]), flag.nonzero, flag.cpu):
            before = counts.reads
            read()
            assert counts.reads == before + 1, read
        before = counts.copies
        torch.tensor([0, 1])
        flag[[0, 1]]
        assert counts.copies == before + 2


@pytest.mark.slow
@laws
@methods
def test_the_host_reads_once_per_round(drafter: str, verifier: Verifier, law: Sampling) -> None:
    with counted() as counts:
        clock = Marks(counts)
        rng = seeded([3], CPU)
        trace, *_ = decode(pair(drafter, verifier, law), [[1, 2, 3]], new=NEW, eos=[], rng=rng, device=CPU, clock=clock)
    prefill, decoding = clock.at[1] - clock.at[0], clock.at[3] - clock.at[2]
    assert len(trace.tokens) == NEW
    assert prefill <= START
    assert decoding <= len(trace.rounds)


@pytest.mark.slow
@laws
@pytest.mark.parametrize("schedule", [Heuristic(), Marginal(), Confidence(0.2)], ids=repr)
def test_a_schedule_reads_what_it_says(schedule: Schedule, law: Sampling) -> None:
    """Besides the read of every round: one per draft, or for confidence one per drafted token but the last of k."""
    with counted() as counts:
        clock = Marks(counts)
        method = pair("model", Rejection(), law, schedule=schedule)
        trace, *_ = decode(method, [[1, 2, 3]], new=NEW, eos=[], rng=seeded([3], CPU), device=CPU, clock=clock)
    drafts, left = [r.drafted for r in trace.rounds], NEW
    reads = len(drafts)
    for done in trace.rounds:
        most = min(K, left - 1)
        per_token = min(done.drafted, max(most - 1, 0))
        reads += per_token if isinstance(schedule, Confidence) else int(most > 0)
        left -= done.emitted
    assert clock.at[3] - clock.at[2] == reads
    assert len(set(drafts[:-3])) > 1, "the schedule never adapted"


@pytest.mark.slow
@laws
@pytest.mark.parametrize("schedule", [Heuristic(), Marginal(), Confidence()], ids=repr)
def test_a_round_with_a_schedule_sends_nothing_to_the_device(schedule: Schedule, law: Sampling) -> None:
    method, rng, copies = pair("model", Rejection(), law, schedule=schedule), seeded([3, 4], CPU), {}
    with torch.inference_mode():
        context = begin([[1, 2, 3], [4]], NEW, ROOM, [0], CPU)
        method.start(context)
        while context.live.any():
            with counted() as counts:
                shape = method.advance(context, K, rng).draft.tree.size
            copies.setdefault(shape, []).append(counts.copies)
    assert all(not any(later) for _, *later in copies.values())  # the first round of a shape may bring its constants
    assert any(later for _, *later in copies.values())


@laws
@methods
def test_a_round_sends_nothing_to_the_device(drafter: str, verifier: Verifier, law: Sampling) -> None:
    method, rng = pair(drafter, verifier, law), seeded([3, 4], CPU)
    with torch.inference_mode():
        context = begin([[1, 2, 3], [4]], NEW, ROOM, [0], CPU)
        method.start(context)
        method.advance(context, K, rng)  # the first round of a shape may bring its constants
        with counted() as counts:
            method.advance(context, K, rng)
    assert (counts.reads, counts.copies) == (0, 0)


@laws
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [("none", Rejection()), ("model", Rejection()), ("model", TokenMatch())],
    ids=["baseline", "chain", "token-match"],
)
def test_a_whole_round_reads_nothing_inside_and_once_behind_it(drafter: str, verifier: Verifier, law: Sampling) -> None:
    """And nothing is sent to the device: the uniforms of a round are drawn there."""
    inside: list[int] = []
    method, prompts, rng, done = pair(drafter, verifier, law, fixed=True), [[1, 2, 3], [4]], seeded([3, 4], CPU), 0
    length = buffer_length(3, NEW, ROOM)
    with torch.no_grad(), counted() as counts:

        def watched(play: Play) -> Play:
            def watch() -> tuple[Tensor, Tensor]:
                before = counts.reads + counts.copies
                result = play()
                inside.append(counts.reads + counts.copies - before)
                return result

            return watch

        rounds = Whole(method, length, (length,), watched)
        rounds.prime(begin(prompts, NEW, ROOM, [0], CPU, length), seeded([0, 0], CPU))
        method.start(rounds.begin(begin(prompts, NEW, ROOM, [0], CPU, length)))
        before = counts.reads, counts.copies
        while done < 6 and rounds.advance(NEW, rng):
            done += 1
            assert (counts.reads, counts.copies) == (before[0] + done, before[1])
    assert done > 3
    assert not any(inside[1:])  # the first is that of `prime`


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@laws
@methods
def test_a_round_does_not_wait_for_a_cuda_device(drafter: str, verifier: Verifier, law: Sampling) -> None:
    device = torch.device("cuda")
    method, rng = pair(drafter, verifier, law, device), seeded([3, 4], device)
    with torch.inference_mode():
        context = begin([[1, 2, 3], [4]], NEW, ROOM, [0], device)
        method.start(context)
        method.advance(context, K, rng)
        torch.cuda.set_sync_debug_mode("error")
        try:
            method.advance(context, K, rng)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert levels_left(context) >= 0
