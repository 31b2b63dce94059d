"""A network that learns in every tier: compiled passes read the weights that it has now."""

from typing import Any

import pytest
import torch

from specbench.backends import tiers
from specbench.backends.native import open_pair
from specbench.decoding.decode import begin
from specbench.decoding.divergences import ForwardKL
from specbench.decoding.randomness import seeded
from specbench.decoding.types import Lesson
from specbench.models.execution import compiled
from specbench.models.execution.compiled import Passes, settings
from specbench.models.execution.region_code import Regional, Regions, Store
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.spec import RunSpec
from tests.support.families import RECURRENT
from tests.support.tiers import NEEDS_COMPILER, AsRecorded, never, smallest_pair
from tests.support.tiny import network, worst
from tests.support.tinypair import Pair

CPU = torch.device("cpu")
LESSON = Lesson(torch.tensor([1, 2, 3, 4]), torch.tensor([2, 3]), torch.eye(16)[[5, 6]])


def errors_before_and_after(frozen: bool) -> list[float]:
    """How far the row of a compiled draft is from that of its network as it is then, before and after an update."""

    store = Store(settings(CPU, frozen))

    def ready(run: Any, wanted: bool) -> Any:
        return Regional(run, Regions(store), never, frozen)

    plain = smallest_pair(Sampling(1.0), fixed=True)["draft"]
    assert isinstance(plain, Causal)
    own, learning = Causal(plain.network, plain.sampling, 16, fixed=True, passes=Passes(ready)).learner(0.05)
    context, found = begin([LESSON.ids.tolist()], 8, 1, [], CPU), []
    for steps in (0, 3):
        assert learning.teach([LESSON] * steps, ForwardKL()) == ""
        with torch.no_grad():
            own.start(context)
            _, rows = own.sample(context, 1, seeded([0], CPU))
            found.append(worst(rows[0, 0], own.network(input_ids=LESSON.ids[None]).logits[0, -1].softmax(-1)))
    return found


@pytest.mark.slow
@NEEDS_COMPILER
def test_compiled_passes_of_a_draft_that_learns_have_its_new_weights() -> None:
    """The control: with weights as constants, some of them would be those from before the update."""
    assert max(errors_before_and_after(frozen=False)) < 1e-5
    before, after = errors_before_and_after(frozen=True)
    assert before < 1e-5 < 1e-2 < after


def test_passes_of_a_draft_that_learns_are_never_frozen() -> None:
    wanted = []

    def ready(run: Any, frozen: bool) -> Any:
        wanted.append(frozen)
        return run

    model = Causal(network("llama", 16), Sampling(1.0), 16, fixed=True, passes=Passes(ready))
    context = begin([[1, 2, 3]], 8, 1, [], CPU)
    for one in (model, model.twin(), model.learner(0.1)[0]):
        one.start(context)
        one.sample(context, 1, seeded([0], CPU))
    assert wanted == [True, True, False]


@pytest.mark.slow
def test_a_run_with_a_draft_that_learns_emits_the_same_text_in_every_tier(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes are recorded and cut, and then run as they are; the draft changes after every eighth text."""
    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(tiers, "Store", AsRecorded)
    monkeypatch.setattr(tiers, "Compiled", never)
    found = []
    for tier in ("eager", "compile"):
        paths = {"target": str(pair.target), "draft": str(pair.draft)}
        spec = RunSpec(**paths, method="online", tier=tier, temperature=1.0, max_new_tokens=6, k=2)
        backend = open_pair([spec])
        backend.load()
        decode = backend.prepare(spec, 3)
        found.append([decode([[n, n + 1, n + 2]], [n])[0] for n in range(10)])
    eager, traced = ([(one.tokens, one.rounds) for one in run] for run in found)
    assert [tokens for tokens, _ in eager] == [tokens for tokens, _ in traced]
    counts = [[(r.drafted, r.accepted, r.emitted) for r in rounds] for run in (eager, traced) for _, rounds in run]
    assert counts[:10] == counts[10:]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_networks_with_a_recurrent_state_learn_as_well(name: str) -> None:
    from specbench.models.network.recurrent import Recurrent

    own, learning = Recurrent(network(name, 16), Sampling(1.0), 16).learner(0.01)
    before = own.network(input_ids=LESSON.ids[None]).logits[0, -1].softmax(-1).detach()
    for _ in range(5):
        assert learning.teach([LESSON], ForwardKL()) == ""
    after = own.network(input_ids=LESSON.ids[None]).logits[0, -1].softmax(-1).detach()
    assert after[6] > before[6] + 0.05
