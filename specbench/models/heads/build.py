"""From the files of a head and its target to a module, and to the two models of a method."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench.errors import UsageError
from specbench.models.checkpoints.check import attempt
from specbench.models.heads.dflash import DFlash, Pard, PEagle
from specbench.models.heads.eagle import Eagle1, Eagle3, Mtp
from specbench.models.heads.medusa import Medusa
from specbench.models.heads.parts import Borrowed, without_copies
from specbench.models.heads.recognition import WORDS, Head, Kind
from specbench.models.heads.recursive import Recursive
from specbench.models.heads.taps import Tapped, Taps
from specbench.models.heads.together import Together
from specbench.models.network.causal import Causal

Layers = Sequence[int] | None
BY_LAYERS: Mapping[Kind, Callable[[Head, Borrowed, Layers], Any]] = {
    "eagle3": Eagle3,
    "medusa": Medusa,
    "peagle": PEagle,
    "dflash": DFlash,
    "dspark": DFlash,
}


def built(head: Head, network: Any, layers: Layers = None) -> Any:
    """The module of a head for this target network; its `at_once` is true if it drafts all tokens in one pass.

    layers: the boundaries that it reads, if the user names them. UsageError if the kind of head has no
    such choice; UnusableModelError for a head of another target, or with missing weights.
    """
    target = Borrowed(network)
    head = without_copies(head, target)
    if layers is not None and head.kind not in BY_LAYERS:
        raise UsageError(f"--aux-layers: {head.name} ({WORDS[head.kind]}) reads the last hidden state only")

    def made() -> Any:
        if head.kind == "mtp":
            return Mtp(head, target)
        return Eagle1(head, target) if head.kind == "eagle1" else BY_LAYERS[head.kind](head, target, layers)

    return attempt(f"{head.name}: no head can be made of its files", made)


def joined(target: Causal, head: Any, depth: int) -> tuple[Causal, Recursive | Together]:
    """The model that judges, in place of `target`, on its weights, and the one that drafts up to `depth` tokens.

    UnusableModelError for a head that reads layers which the target does not have. UsageError
    if it drafts fewer tokens.
    """
    tapped = Tapped(target.network, head.taps)
    judge = Causal(tapped, target.sampling, target.width, target.fixed, memory=target.memory)
    made = Together if head.at_once else Recursive
    drafts = made(head, Taps(judge, tapped), target.sampling, target.width, depth, target.fixed, target.memory.beside())
    return judge, drafts


def through_masks(draft: Causal, name: str, depth: int) -> Together:
    """A network trained as in PARD, as the model that drafts up to `depth` tokens in one pass.

    UnusableModelError if its configuration names no mask.
    """
    head = Pard(draft.network, draft.width, name)
    return Together(head, None, draft.sampling, draft.width, depth, draft.fixed, draft.memory)
