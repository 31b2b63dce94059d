"""What a target says along known text, computed anew or from its last states on disk; and text of a draft's own.

The states are what its head reads. Whoever learns a text again and again, with
other losses, rates or shapes of drafts, runs the target's layers over it once.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.decoding.decode import decode_batches
from specbench.decoding.drafters.chain import NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.files import open_own, own_folder, writing
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.training.cache import Example
from specbench.training.learner import Batch, batch_of, logits_of
from specbench.training.recipe import Recipe
from specbench.wording import clean_path

FOLDER = "states"  # in that of a token cache
DIGEST = 8  # bytes before the states of an example
BYTES = torch.uint8


class States:
    """A file of a teacher's last states: [n, H] in its type for each example, one before each of n tokens.

    counts: n of every example of a cache: its last tokens, of which all or some are learned;
    expected: how many tokens of all these are, at least. An example's states are written when they
    are first needed, with a digest in front: what is missing, torn or damaged is computed again. Each
    example is computed by itself, so the same run goes on with the same bits, whatever was on disk.
    """

    def __init__(self, file: Path, counts: NDArray[np.int64], width: int, dtype: torch.dtype, expected: int) -> None:
        self.counts, self.width, self.dtype, self.place = counts, width, dtype, clean_path(file.parent)
        self._row = width * dtype.itemsize
        ends = np.cumsum(counts * self._row + DIGEST)
        self._first, self.bytes = ends - (counts * self._row + DIGEST), int(ends[-1])
        with self.writing():
            own_folder(file.parent)
            self._file = open_own(file)
            status, disk = os.fstat(self._file), os.statvfs(file.parent)
        needed, free = min(self.bytes, expected * self._row), disk.f_bavail * disk.f_frsize
        if needed - status.st_blocks * 512 > free:
            raise UsageError(
                f"the target's states take {needed / 1e9:.2g} GB, and {self.place} has {free / 1e9:.2g} GB left: "
                "free some space, give another --cache, or --no-keep-states"
            )

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def of(self, example: Example, computed: Callable[[int], Tensor]) -> Tensor:
        """[n, H] the states before the last n tokens of an example; `computed`, for n, where they are not there."""
        assert example.number is not None
        count = int(self.counts[example.number])
        place, size = int(self._first[example.number]), count * self._row
        held = os.pread(self._file, DIGEST + size, place)
        if held[:DIGEST] != digest(held[DIGEST:]) or len(held) != DIGEST + size:
            states = computed(count).contiguous().cpu()
            held = states.view(BYTES).numpy().tobytes()
            with self.writing():
                os.pwrite(self._file, digest(held) + held, place)
            return states
        return torch.frombuffer(bytearray(held[DIGEST:]), dtype=self.dtype).view(-1, self.width)

    @contextmanager
    def writing(self) -> Iterator[None]:
        advice = "free some space; what is there stays, and the same command goes on with it"
        with writing(f"the target's states to {self.place}", advice):
            yield


def digest(states: bytes) -> bytes:
    return hashlib.blake2b(states, digest_size=DIGEST).digest()


@dataclass(frozen=True)
class Teacher:
    """A network that teaches. With `states` its layers read every example of their cache once, and as
    a whole: of a sequence that was cut, too, where a network without them sees no more than the part."""

    network: Any
    states: States | None = None

    @cached_property
    def device(self) -> torch.device:
        found: torch.device = next(self.network.parameters()).device
        return found

    @property
    def width(self) -> int:
        """V, that of its head."""
        return int(self.network.config.get_text_config(decoder=True).vocab_size)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """[n, V] at the positions whose next token is learned."""
        if self.states is None or any(example.number is None for example in batch.examples):
            return logits_of(self.network, batch)
        parts = []
        for example, end, count in zip(batch.examples, batch.ends, batch.learned.sum(1).tolist(), strict=True):
            known = self.states.of(example, partial(last_states, self.network, example))
            last = end - (len(example.ids) - len(known))
            parts.append(known[last - count : last])
        return headed(self.network, torch.cat(parts).to(self.device))

    def rows(self, batch: Batch, law: Sampling) -> Tensor:
        """[n, V] its distributions there, in float32."""
        return law(self.logits(batch), self.width)


def with_states(network: Any, folder: Path, counts: NDArray[np.int64], key: str, expected: int) -> Teacher:
    """A teacher that keeps its states in a folder; key: what its weights and the text are known by. See `States`.

    A network whose head is no module of its own computes everything anew.
    """
    if network.get_output_embeddings() is None:
        return Teacher(network)
    probe = last_states(network, Example([0, 0], 1, "", ""), 1)
    return Teacher(network, States(folder / f"{key}.bin", counts, probe.shape[-1], probe.dtype, expected))


@torch.no_grad()
def last_states(network: Any, example: Example, count: int) -> Tensor:
    """[n, H] what the head reads before each of the last n tokens of an example."""
    found: list[Tensor] = []

    def take(head: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found.append(inputs[0])
        return (inputs[0][:, -1:], *inputs[1:])  # its logits have no use here

    ids = torch.tensor([list(example.ids[:-1])], device=next(network.parameters()).device)
    with hooked(network, take):
        network(input_ids=ids, use_cache=False, logits_to_keep=count)
    return found[0][0, -count:]


@torch.no_grad()
def headed(network: Any, states: Tensor) -> Tensor:
    """[n, V] the logits of last states [n, H]: by the network itself, which may do more than its head does.

    It is fed one token, whose state at the head is then replaced.
    """
    ids = torch.zeros((1, 1), dtype=torch.long, device=states.device)
    with hooked(network, lambda head, inputs: (states.unsqueeze(0), *inputs[1:])):
        logits: Tensor = network(input_ids=ids, use_cache=False).logits[0]
    return logits


@contextmanager
def hooked(network: Any, hook: Callable[..., Any]) -> Iterator[None]:
    """While it lasts, what the head reads goes through a hook."""
    handle = network.get_output_embeddings().register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


WARMEST = 1.0  # where greedy decoding is learned for: drafts of the most probable tokens alone repeat themselves


def continued(batch: Batch, student: Any, recipe: Recipe, width: int, number: int) -> Batch:
    """The prompts of a batch with what the student writes after them, in the place of what the data has there.

    Text without a prompt is continued after its first quarter.
    """
    examples = [shortened(example, recipe.length) for example in batch.examples]
    longest = max(len(one.ids) - one.start for one in examples)
    seeds = np.random.default_rng((recipe.seed, number)).integers(2**62, size=len(examples)).tolist()
    student.eval()
    written = decode_batches(
        Speculate(NoDraft(), Causal(student, Sampling(recipe.temperature or WARMEST), width), Rejection()),
        [list(one.ids[: one.start]) for one in examples],
        seeds,
        rows=len(examples),
        new=longest,
        eos=(),
        device=next(student.parameters()).device,
    )
    found = [
        replace(one, ids=[*one.ids[: one.start], *trace.tokens], number=None)
        for one, trace in zip(examples, written, strict=True)
    ]
    return batch_of(found, recipe.length, (recipe.seed, number), recipe.prompts)


def shortened(example: Example, length: int) -> Example:
    """An example with a prompt that leaves half of `length` for what follows."""
    start = example.start if example.start > 1 else max(len(example.ids) // 4, 1)
    first = max(0, start - length // 2)
    ids: Sequence[int] = example.ids[first : first + length]
    return replace(example, ids=ids, start=start - first)
