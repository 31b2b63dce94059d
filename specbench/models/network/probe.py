"""A probe of a loaded network: how can tokens be taken back from it, so that its answers are those of the text alone?

Configurations are judged in `architectures`; this catches what no configuration says (a mask that is ignored or read
in another sense, state outside the cache). It costs a few short passes, once per network, before anything is timed.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import UnusableModelError
from specbench.models.execution.compiled import Passes
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law
from specbench.models.network.pool import OWN, Memory
from specbench.models.network.recurrent import Recurrent
from specbench.wording import first_line

COMMITTED, DRAFTED = 5, 3
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # total variation; 16-bit types below
LOOSE, TIMES, MOST = 0.1, 3.0, 0.5  # in 16 bits: always, as a multiple of the noise of plain passes, and at most


# position: to write again where rejected tokens lie takes them back; snapshot: to put a copy of the state back does,
# and so does single, for a network that goes on from a state by one token at a time only
Rollback = Literal["position", "snapshot", "single"]


def rollback_of(network: Any, recurrent: bool, width: int, name: str) -> Rollback:
    """How tokens are taken back from a network; UnusableModelError if its rows after that are not those of the text."""
    possible: tuple[Rollback, ...] = ("snapshot", "single") if recurrent else ("position",)
    change = math.inf
    for rollback in possible:
        change = distance(model_of(rollback, network, Law(), width), name)
        if allowed(change, network, width):
            return rollback
    raise UnusableModelError(
        f"{name}: its distributions change by {change:.2g} (total variation) when drafted tokens are taken "
        "back: it keeps state that neither positions nor its cache describe; specbench cannot measure it"
    )


def model_of(
    rollback: Rollback,
    network: Any,
    law: Law,
    width: int,
    fixed: bool = False,
    passes: Passes | None = None,
    memory: Memory = OWN,
) -> Causal | Recurrent:
    """A network as a model; `fixed`, `passes` and `memory` as of `Causal`."""
    if rollback == "position":
        return Causal(network, law, width, fixed, passes, memory)
    return Recurrent(network, law, width, stepwise=rollback == "single")


@torch.no_grad()
def distance(model: Causal | Recurrent, name: str) -> float:
    """Total variation between rows after a rollback and those of one plain pass over the whole sequence.

    UnusableModelError for a network that does not even take the passes.
    """
    text = torch.arange(2, 2 + COMMITTED + DRAFTED, device=model.network.device).unsqueeze(0) % model.config.vocab_size
    context = context_of(text[:, :COMMITTED], DRAFTED)
    plain = model.law(model.network(input_ids=text).logits[:, COMMITTED - 1 :], model.width)
    try:
        model.start(context)
        model.probs(context, TokenTree.chain(text.flip(1)[:, :DRAFTED]))  # tokens that are then taken back
        again = model.probs(context, TokenTree.chain(text[:, COMMITTED:]))
    except Exception as error:  # whatever the code of a network raises that does not expect such a cache
        raise UnusableModelError(f"{name}: its cache takes no drafted tokens ({first_line(error)})") from error
    if not plain.isfinite().all():
        return 0.0  # NaN by itself, whatever the cache holds: the loop finds it, and the cell gets it as its status
    found = float(((again - plain).abs().sum(-1) / 2).max())
    return math.inf if math.isnan(found) else found


def allowed(change: float, network: Any, width: int) -> bool:
    """Whether so much of a change may be rounding. In 16 bits plain passes say how much of that there is, where it is
    more than usual: kernels differ with the number of tokens, and the distributions of some networks are steep."""
    if change <= TOLERANCE.get(network.dtype, LOOSE):
        return True
    return network.dtype not in TOLERANCE and change <= min(MOST, TIMES * noise(network, width))


@torch.no_grad()
def noise(network: Any, width: int) -> float:
    """Total variation between what plain passes over one token, and over some, say of texts that begin alike."""
    ids = torch.arange(2, 2 + COMMITTED + DRAFTED, device=network.device).unsqueeze(0)
    text, law = ids % network.config.get_text_config(decoder=True).vocab_size, Law()
    whole = law(network(input_ids=text).logits, width)
    begun = (1, *range(COMMITTED, COMMITTED + DRAFTED))
    parts = torch.cat([law(network(input_ids=text[:, :n]).logits[:, -1:], width) for n in begun], 1)
    places = torch.tensor(begun, device=text.device) - 1
    return float(((parts - whole[:, places]).abs().sum(-1) / 2).max())


def context_of(ids: Tensor, drafted: int) -> Context:
    """The sequence ids [1, n] with space for `drafted` tokens after it."""
    pos = torch.tensor([ids.shape[1] - 1], device=ids.device)
    alive = torch.ones(1, dtype=torch.bool, device=ids.device)
    seq = torch.cat([ids, ids.new_zeros((1, drafted + 2))], 1)
    return Context(seq, pos, alive, pos + drafted, pos.new_empty(0), alive.clone(), seq.shape[1])
