"""A probe of a loaded network: does it answer by position alone, as the engine needs?

Configurations are judged in `architectures`; this catches what no configuration says (a mask that is ignored or read
in another sense, state outside the cache). It costs four short passes, once per network, before anything is timed.
"""

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import UnusableModelError
from specbench.models.network.causal import Causal

COMMITTED, DRAFTED = 5, 3
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # total variation; 16-bit types below
LOOSE = 0.1


@torch.no_grad()
def probe(model: Causal, name: str, device: torch.device) -> None:
    """Raise UnusableModelError unless rows after a rollback equal those of one plain pass over the whole sequence."""
    text = torch.arange(2, 2 + COMMITTED + DRAFTED, device=device).unsqueeze(0) % model.config.vocab_size
    context = context_of(text[:, :COMMITTED], DRAFTED)
    model.start(context)
    model.probs(context, TokenTree.chain(text.flip(1)[:, :DRAFTED]))  # tokens that are then taken back
    again = model.probs(context, TokenTree.chain(text[:, COMMITTED:]))
    plain = model.law(model.network(input_ids=text).logits[:, COMMITTED - 1 :], model.width)
    if not plain.isfinite().all():
        return  # NaN by itself, whatever the cache holds: the loop finds it, and the cell gets it as its status
    distance = float(((again - plain).abs().sum(-1) / 2).max())
    if not distance <= TOLERANCE.get(model.network.dtype, LOOSE):
        raise UnusableModelError(
            f"{name}: its distributions change by {distance:.2g} (total variation) when drafted tokens are taken "
            "back: it keeps state that positions do not describe; specbench cannot measure it"
        )


def context_of(ids: Tensor, drafted: int) -> Context:
    """The sequence ids [1, n] with space for `drafted` tokens after it."""
    pos = torch.tensor([ids.shape[1] - 1], device=ids.device)
    alive = torch.ones(1, dtype=torch.bool, device=ids.device)
    seq = torch.cat([ids, ids.new_zeros((1, drafted + 2))], 1)
    return Context(seq, pos, alive, pos + drafted, pos.new_empty(0), alive.clone(), seq.shape[1])
