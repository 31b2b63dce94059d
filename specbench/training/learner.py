"""The elements of a training step: batches of token ids, logits along them, weights of tokens, and
a network with its optimiser, which accelerate places, accumulates and stores in checkpoints."""

import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list
from safetensors.torch import save_file
from torch import Tensor

from specbench.errors import SpecbenchError, UsageError
from specbench.files import ANY, check_regular, own_folder, read_whole
from specbench.training.cache import Example, Examples
from specbench.training.recipe import Recipe
from specbench.wording import first_line

SORTED = 16  # batches within which sequences are sorted by length, to save padding


@dataclass(frozen=True)
class Batch:
    """Sequences as a batch: ids [B, L], padded on the right, and learned [B, L − 1], true where the
    next token is learned. `examples` are their origins, and `ends` [B] their ends in these."""

    ids: Tensor
    learned: Tensor
    examples: Sequence[Example]
    ends: Sequence[int]

    @property
    def fed(self) -> Tensor:
        """[B, L − 1] the inputs of the networks."""
        return self.ids[:, :-1]

    @property
    def following(self) -> Tensor:
        """[n] the learned tokens, row by row."""
        return self.ids[:, 1:][self.learned]

    @property
    def tokens(self) -> int:
        """n, the number of learned tokens."""
        return int(self.learned.sum())

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.ids.to(device), self.learned.to(device), self.examples, self.ends)


def batch_of(examples: Sequence[Example], length: int, seed: tuple[int, ...] = (0,), prompts: bool = False) -> Batch:
    """The examples as one batch; from one longer than `length` a part with learned tokens, chosen by the seed.

    prompts: whether these are learned, too.
    """
    random = np.random.default_rng(seed)
    parts = [part_of(example, length, random) for example in examples]
    longest = max(len(ids) for ids, _, _ in parts)
    ids = torch.zeros((len(parts), longest), dtype=torch.long)
    learned = torch.zeros((len(parts), longest - 1), dtype=torch.bool)
    for row, (tokens, start, _) in enumerate(parts):
        ids[row, : len(tokens)] = torch.as_tensor(np.asarray(tokens, dtype=np.int64))
        learned[row, 0 if prompts else max(start, 1) - 1 : len(tokens) - 1] = True
    return Batch(ids, learned, examples, [end for *_, end in parts])


def part_of(example: Example, length: int, random: np.random.Generator) -> tuple[Sequence[int], int, int]:
    """At most `length` tokens of an example, the index of the first learned one, and their end in the example."""
    size = len(example.ids)
    if size <= length:
        return example.ids, example.start, size
    least = min(example.start + length // 2, size)  # half of it is learned if the example has as much
    end = int(random.integers(max(least, length), size + 1))
    return example.ids[end - length : end], max(example.start - (end - length), 0), end


class Batches:
    """The batches of a run over some examples, in an order given by a seed: every example once before any twice."""

    def __init__(self, examples: Examples, recipe: Recipe, processes: int = 1, process: int = 0) -> None:
        self.examples, self.recipe, self.part = examples, recipe, slice(process, None, processes)
        self.rows = min(recipe.rows * processes, len(examples))
        self.each = -(-len(examples) // self.rows)  # batches of an epoch
        self.arranged = lru_cache(maxsize=1)(self._arranged)

    def __call__(self, number: int) -> Batch:
        """The batch of this process in pass `number`."""
        epoch, place = divmod(number, self.each)
        whole = self.arranged(epoch)[place]
        chosen = whole[self.part] if len(whole[self.part]) else whole[:1]  # a last batch may be small
        examples = [self.examples[int(i)] for i in chosen]
        return batch_of(examples, self.recipe.length, (self.recipe.seed, number), self.recipe.prompts)

    def _arranged(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng((self.recipe.seed, epoch))
        order = random.permutation(len(self.examples))
        lengths = np.minimum(self.examples.lengths, self.recipe.length)
        block = self.rows * SORTED
        sorted_ = [
            part[np.argsort(lengths[part], kind="stable")] for part in np.split(order, range(block, len(order), block))
        ]
        batches = [part[i : i + self.rows] for part in sorted_ for i in range(0, len(part), self.rows)]
        return [batches[i] for i in random.permutation(len(batches))]


def logits_of(network: Any, batch: Batch) -> Tensor:
    """[n, V'] logits at the positions whose next token is learned."""
    first = int(batch.learned.any(0).int().argmax())  # no row before it is read
    kept = network(input_ids=batch.fed, use_cache=False, logits_to_keep=batch.fed.shape[1] - first).logits
    rows: Tensor = kept[batch.learned[:, first:]]
    return rows


REST = 0.1  # weight of a token that an earlier draft predicts: a draft must still be able to continue after it


def missed(earlier: Sequence[Any], batch: Batch, p: Tensor, rest: float = REST) -> Tensor:
    """[n] the weight of every token, from the target's rows p [n, V]: full unless an earlier draft's likeliest
    token is the target's. The paper drops whole prompts that an earlier draft completes; here, single tokens."""
    return torch.where(hit(earlier, batch, p.argmax(-1)), rest, 1.0)


@torch.no_grad()
def hit(drafts: Sequence[Any], batch: Batch, tokens: Tensor) -> Tensor:
    """[n] whether the likeliest token of any draft equals the given one [n]."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for draft in drafts:
        found |= logits_of(draft, batch).argmax(-1) == tokens
    return found


STEP = re.compile(r"step-(\d{9})")
STATE = "progress.json"
T = TypeVar("T")


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint in a folder."""
    found = sorted(path for path in folder.glob("step-*") if STEP.fullmatch(path.name) and (path / STATE).is_file())
    return found[-1] if found else None


def write_checkpoint(folder: Path, step: int, progress: Mapping[str, Any], save: Callable[[Path], None]) -> None:
    """Write the checkpoint of a step, then remove older ones. UsageError if it cannot be written: they stay."""
    unfinished, final = folder / "unfinished", folder / f"step-{step:09d}"
    try:
        own_folder(folder)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        save(unfinished)
        with (unfinished / STATE).open("w", encoding="utf-8") as file:
            json.dump(progress, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
    except Exception as error:  # torch, safetensors and the system report a full disk differently
        shutil.rmtree(unfinished, ignore_errors=True)
        kept = newest_checkpoint(folder)
        where = f"; the last one, {kept}, is whole: make room and run the command again" if kept else ""
        raise UsageError(f"cannot write a checkpoint to {folder}: {first_line(error)}{where}") from error
    for old in folder.glob("step-*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def read_checkpoint(path: Path) -> Iterator[dict[str, Any]]:
    """The progress of a checkpoint. UsageError if it cannot be read, or the enclosed code fails with its files."""
    try:
        for file in path.rglob("*"):
            if not file.is_dir():
                check_regular(file, ANY)
        yield json.loads(read_whole(path / STATE))
    except Exception as error:  # truncated or forged files: json, pickle, safetensors and torch differ
        raise UsageError(
            f"cannot continue from {path}: {first_line(error)}; remove it to begin again, or give another --output"
        ) from error


logging.getLogger("accelerate").setLevel(logging.ERROR)  # it warns about tied weights at every checkpoint
BEST = "best.safetensors"


class DivergedError(SpecbenchError):
    """A loss or a gradient is not finite."""

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
        """The network itself, without wrappers for other precisions or devices."""
        return self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)

    def step(self, passes: Iterable[Batch], loss_of: Callable[[Any, Batch], Tensor], factor: float) -> float:
        """One step over some passes: the mean loss. DivergedError, before a weight changes, if it is not finite."""
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

    def total(self, count: int) -> int:
        """A count summed over all processes."""
        if self.accelerator.num_processes == 1:
            return count
        return int(self.accelerator.reduce(torch.tensor(count, device=self.accelerator.device)))

    def save(self, folder: Path, step: int, progress: Mapping[str, Any], best: Mapping[str, Tensor]) -> None:
        """Save the complete state for the next step, and the best weights. See `write_checkpoint`."""

        def into(place: Path) -> None:
            self.accelerator.save_state(str(place))
            save_file(dict(best), place / BEST)

        if self.accelerator.is_main_process:
            write_checkpoint(folder, step, progress, into)
        self.accelerator.wait_for_everyone()


# --- processes --------------------------------------------------------------------------------------------------------
# Those that train together, one per device, as `accelerate launch` or `torchrun` starts them; usually one.


def process_state() -> PartialState:
    """The state of this process; on a machine with GPUs it has its own device."""
    return PartialState(cpu=not torch.cuda.is_available())


def is_first() -> bool:
    """Whether this process writes files and reports to the user."""
    return bool(process_state().is_main_process)


def agreed(value: T) -> T:
    """The first process's value: all must decide alike, and devices may round differently."""
    if process_state().num_processes == 1:
        return value
    return cast(T, broadcast_object_list([value])[0])
