"""A network that learns while it drafts: its own weights, and small steps that bring its rows closer to another's."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.protocols import Loss
from specbench.decoding.types import Lesson
from specbench.errors import UsageError

CLIP = 1.0  # maximum norm of a gradient
FEW = 8  # tokens of a warm-up text for gradients


class Learning:
    """Copies of a network: `served`, in its dtype, and the trained one, in float32 at least, because a small step
    is lost in 16 bits. If both have one dtype they are one. AdamW without decay: nothing pulls towards zero.

    temperature: that of the rows to imitate; at 0 these are point masses, and its own are those of its logits.
    """

    def __init__(self, network: Any, temperature: float, rate: float) -> None:
        if not all(weight.is_floating_point() and type(weight.data) is Tensor for weight in network.parameters()):
            raise UsageError(
                f"{type(network).__name__}: a draft that learns has weights in floating point, and these are "
                "quantised: use another --draft, or leave out --draft-quantize"
            )
        self.network, self.temperature, self.rate = network, temperature or 1.0, rate
        self.served = copy.deepcopy(network).requires_grad_(False)
        small = network.dtype.itemsize < torch.float32.itemsize
        self.trained = copy.deepcopy(network).float() if small else self.served
        self.trained.requires_grad_(True)
        self.optimizer = self._optimizer()
        ids = torch.zeros(FEW, dtype=torch.long, device=network.device)
        p = ids.new_zeros((1, network.config.get_text_config(decoder=True).vocab_size))
        self._gradients(Lesson(ids, ids[-1:] + FEW - 1, p), lambda p, logits: logits.sum(-1))  # first calls are slow
        self.optimizer.zero_grad()

    def teach(self, lessons: Sequence[Lesson], loss: Loss) -> str:
        """See `Learner.teach`. A step with a non-finite gradient is not taken, and the steps before it are undone."""
        before = [weight.detach().clone() for weight in self.trained.parameters()]
        for lesson in lessons:
            self.optimizer.zero_grad()
            if not self._gradients(lesson, loss):
                return self._undo(before, "its loss or gradient is not a number")
            self.optimizer.step()
        self._serve()
        with torch.no_grad():
            found = [logits(self.served, lesson) for lesson in lessons[-1:]]
        # a reduced vocabulary has −inf elsewhere
        if not all(bool((some.isfinite() | (some == -torch.inf)).all()) for some in found):
            return self._undo(before, "the logits of the draft were not numbers after it")
        return ""

    def forget(self) -> None:
        self._restore(self.network.parameters())

    def _gradients(self, lesson: Lesson, loss: Loss) -> bool:
        """Compute the clipped gradients of the mean loss over the rows of a text; returns whether they are finite."""
        p, found = in_common(lesson.p, logits(self.trained, lesson) / self.temperature)
        value = loss(p.to(found.dtype), found).mean()
        value.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.trained.parameters(), CLIP)
        return bool(value.isfinite() & norm.isfinite())

    def _undo(self, before: Sequence[Tensor], why: str) -> str:
        self._restore(iter(before))
        return why

    def _restore(self, weights: Iterator[Tensor]) -> None:
        """Set the weights, with a new optimiser state."""
        with torch.no_grad():
            for own, weight in zip(self.trained.parameters(), weights, strict=True):
                own.copy_(weight)
        self.optimizer = self._optimizer()
        self._serve()

    def _serve(self) -> None:
        """Copy the trained weights to the drafting network in place, as compiled code and captured graphs read it."""
        if self.served is not self.trained:
            self.served.load_state_dict(self.trained.state_dict())

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.trained.parameters(), lr=self.rate, weight_decay=0.0)


def logits(network: Any, lesson: Lesson) -> Tensor:
    """[m, V'] the logits after the positions of a text, read at once and without a cache."""
    known = network.config.get_text_config(decoder=True).vocab_size
    ids = lesson.ids[: int(lesson.places.max()) + 1].clamp_max(known - 1).unsqueeze(0)
    found: Tensor = network(input_ids=ids, use_cache=False, logits_to_keep=lesson.places).logits[0]
    return found


def in_common(p: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [m, V] and logits [m, V'] on the common tokens: a draft may know fewer, or have a wider head."""
    width = min(p.shape[-1], logits.shape[-1])
    p, logits = p[:, :width], logits[:, :width]
    there = (logits != -torch.inf).all(0)
    return (p, logits) if bool(there.all()) else (p[:, there], logits[:, there])
