"""A network with its optimiser, on one device or many: accelerate places, accumulates and stores them.

Knows gradients; must not know data, losses or when to stop.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.errors import SpecbenchError
from specbench.training import checkpoint
from specbench.training.batches import Batch
from specbench.training.recipe import Recipe

logging.getLogger("accelerate").setLevel(logging.ERROR)  # it tells of tied weights at every checkpoint
T = TypeVar("T")
BEST = "best.safetensors"


class DivergedError(SpecbenchError):
    """A loss or a gradient is no longer a number."""

    exit_code = 6


class Learner:
    """`student` in float32 with AdamW, computing in the precision of the recipe."""

    def __init__(self, student: Any, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision="bf16" if recipe.precision == "bfloat16" else "no",
            gradient_accumulation_steps=recipe.accumulation,
        )
        student.float().requires_grad_(True)
        groups = [
            {"params": [p for p in student.parameters() if p.ndim >= 2], "weight_decay": recipe.decay},
            {"params": [p for p in student.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95))
        self.model, self.optimiser = self.accelerator.prepare(student, optimiser)

    @property
    def student(self) -> Any:
        """The network itself, without what computes in another precision or on other devices."""
        return self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)

    def step(self, passes: Iterable[Batch], loss_of: Callable[[Any, Batch], Tensor], factor: float) -> float:
        """One step over some passes: the mean loss. DivergedError, before a weight changes, where it is no number."""
        self.model.train()
        losses = []
        for batch in passes:
            with self.accelerator.accumulate(self.model):
                loss = loss_of(self.model, batch)
                losses.append(float(loss.detach()))
                if not math.isfinite(losses[-1]):
                    raise DivergedError(f"the loss is {losses[-1]}")
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self._update(factor)
        return sum(losses) / len(losses)

    def _update(self, factor: float) -> None:
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        if norm is not None and not math.isfinite(float(norm)):
            raise DivergedError(f"the gradient's norm is {float(norm)}")
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * factor
        self.optimiser.step()
        self.optimiser.zero_grad()

    @property
    def processes(self) -> int:
        return int(self.accelerator.num_processes)

    @property
    def process(self) -> int:
        """Which of the processes this is, from 0."""
        return int(self.accelerator.process_index)

    @property
    def first(self) -> bool:
        """Whether this process writes what is kept."""
        return bool(self.accelerator.is_main_process)

    def total(self, count: int) -> int:
        """A count summed over all processes."""
        if self.processes == 1:
            return count
        return int(self.accelerator.reduce(torch.tensor(count, device=self.accelerator.device)))

    def save(self, folder: Path, step: int, progress: Mapping[str, Any], best: Mapping[str, Tensor]) -> None:
        """Everything that the next step depends on, and the best weights. See `checkpoint.write`."""

        def into(place: Path) -> None:
            self.accelerator.save_state(str(place))
            save_file(dict(best), place / BEST)

        if self.first:
            checkpoint.write(folder, step, progress, into)
        self.accelerator.wait_for_everyone()

    def load(self, path: Path, read: Callable[[dict[str, Any], dict[str, Tensor]], T]) -> T:
        """Go on from what `save` wrote: what `read` makes of how far the run was and of its best weights."""

        def take(progress: dict[str, Any], place: Path) -> T:
            found = read(progress, load_file(place / BEST))
            self.accelerator.load_state(str(place))
            return found

        return checkpoint.read(path, take)
