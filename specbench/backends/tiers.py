"""Tiers: the tier of the specs of a pair, and how rounds are compiled, captured or run eagerly."""

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from specbench.backends.checked import CheckedPair, check_models, drafting_device
from specbench.backends.heads import refuse_deep
from specbench.backends.networks import joined_reason, recurrent_reason
from specbench.backends.roles import form, refuse_heads, unthinking
from specbench.decoding.decode import begin, decode
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import FromUniforms
from specbench.decoding.rounds import Play, Replayed, Rounds, Stepwise, Whole
from specbench.decoding.timing import CudaClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import SpecbenchError, UsageError, out_of_memory
from specbench.models.checkpoints import description, quantise
from specbench.models.checkpoints.quantise import UncompiledError
from specbench.models.execution import compiled, few_rows
from specbench.models.execution.compiled import Compiled, Gate, Name, Passes, reaches, settings
from specbench.models.execution.few_rows import pays
from specbench.models.execution.graphs import Captured, Repeated, Shared
from specbench.models.execution.region_code import Regional, Regions, Store, read_headers
from specbench.models.execution.regions import UncutError
from specbench.spec import RunSpec
from specbench.wording import first_line

TEXTS = 3  # synthetic texts decoded during preparation: a short one, a long one, and one between
AGAIN = 5  # maximum number of further texts, until one brings no pass of new shapes
NEW = 128  # tokens of each
AUTO = "auto"
PYTHON = compiled.EAGER.partition(";")[0]
CANNOT: dict[Name, str] = {"compile": "cannot be compiled", "graph": "cannot be captured as CUDA graphs"}
HELD = {"compile": "compiled", "graph": "captured"}  # rounds with memory of their own, by tier
Opened = tuple[CheckedPair, "Tier", str]


@dataclass
class Tier:
    """One execution mode on one device. Its graphs share one memory pool.

    not_whole: unless empty, why a round that cannot be compiled by regions (UncutError) is not compiled
    whole. packed: whether eager passes, which read prompts in every tier, have packed matrices.
    """

    name: Name
    device: torch.device
    not_whole: str = ""
    packed: bool = False
    remarks: dict[str, None] = field(default_factory=dict, init=False)  # remarks on prepared rounds
    _gate: Gate = field(default_factory=Gate, init=False, repr=False)  # of all passes: open during preparation

    @property
    def lays_out(self) -> bool:
        """Whether compiled passes hold a second copy of matrices in their own layout."""
        return self.name == "compile" and self.device.type == "cpu"

    def eager(self) -> "Tier":
        """The tier without anything compiled or captured, in no more memory."""
        return Tier("eager", self.device, packed=(self.packed or self.lays_out) and pays())

    def gradless(self) -> AbstractContextManager[None]:
        """Disable gradients; in eager calls also version counters of tensors. Only a compiler
        needs those, and they cost a small model a tenth of its time."""
        return torch.inference_mode() if self.name == "eager" else torch.no_grad()

    def passes(self, static: bool) -> Passes | None:
        """The runner of a network's passes, for a static or dynamic method; None: run as they are."""
        if static or self.name == "eager":
            return None
        self._gate.open = True  # until the rounds of a method are ready
        return Passes(self._repeated, self._gate)

    def alone(self, part: Callable[[], object]) -> Callable[[], object]:
        """A part of a static round, executed as whole rounds are."""
        found: Callable[[], object] = part if self.name == "eager" else self._repeated(part, True)
        return found

    def rounds(self, method: Speculate, length: int, rows: int, eos: list[int], source: FromUniforms) -> Rounds:
        """The rounds of a method on contexts of up to `length` slots and exactly `rows` rows, ready to run.

        `source`: turns draws into decisions; its draws during preparation are discarded.
        """
        if self.name == "eager":
            return Stepwise(method)
        # a text of two tokens and one to decode, discarded after preparation
        context = begin([[0, 0]] * rows, 1, method.drafter.room, eos, self.device, length)
        if not method.drafter.static:
            return self._stepwise(Stepwise(method, length), context, source)
        steps = reaches(length, self.name)
        whole = Whole(method, length, steps, self._called)
        rounds = Replayed(method, length, steps, self._called, self._captured(method)) if self._graphs else whole
        rounds.prime(context, source)
        return rounds

    @property
    def _graphs(self) -> bool:
        return self.device.type == "cuda"  # compiled functions are captured as well: their launches cost as much

    def _called(self, play: Play) -> Play:
        return self._compiled(play) if self.name == "compile" else play

    def _compiled(self, function: Any, frozen: bool = True) -> Any:
        """Compile a function by regions, equal ones once. Calls are cheap on a CPU and cost nothing in a capture."""
        frozen = frozen and not self._graphs  # weights are arguments on a GPU: there a layout gains nothing

        def whole(function: Any) -> Any:
            return Compiled(function, self.device, frozen=frozen)

        return Regional(function, self._regions[frozen], whole, frozen, self._uncut)

    @cached_property
    def _regions(self) -> dict[bool, Regions]:
        """By whether weights are frozen."""
        found = {froze: Regions(Store(settings(self.device, froze))) for froze in (True, False)}
        if not self._graphs:
            read_headers()
        return found

    def _uncut(self, reason: str) -> None:
        if self.not_whole and not self._graphs:
            raise UncutError(f"only as a whole, {self.not_whole}; {reason}")
        self.remarks |= {f"compiled as a whole, which takes longer ({reason})": None}

    def _captured(self, method: Speculate) -> Any:
        clock = method.clock
        assert isinstance(clock, CudaClock), "a device with graphs is timed by its own events"
        return lambda play: Captured(play, self._captures, clock)

    def _repeated(self, run: Any, frozen: bool) -> Any:
        function = self._compiled(run, frozen) if self.name == "compile" else run
        return Repeated(function, self._captures) if self._graphs else function

    @cached_property
    def _captures(self) -> Shared:
        return Shared(self.device)

    def _stepwise(self, rounds: Stepwise, context: Context, source: FromUniforms) -> Stepwise:
        """Stepwise rounds whose passes are ready for all shapes that occurred in decodes of synthetic texts.

        A pass of another shape runs uncompiled later: compiling it would be part of a measured time.
        """
        method = rounds.method
        if method.drafter.drawn and not method.drafter.branches:
            # all widths of verification, which texts may not produce, and those of a draft of two
            method.start(context)
            for width in range(method.drafter.depth + 1):
                method.model.probs(context, TokenTree.chain(context.seq.new_zeros((context.rows, width))))
            method.drafter.propose(replace(context, last=context.last + 2), 2, source)
        places = context.seq.shape[1] - method.drafter.room - 2
        for number in range(TEXTS + AGAIN):
            length = (2, places // 2, places - NEW)[number % TEXTS]
            random = torch.Generator().manual_seed(number)
            ids: list[int] = torch.randint(2, (max(2, min(length, places - 1)),), generator=random).tolist()
            made, prompt = self._gate.made, ids
            new = min(NEW, places - len(prompt))
            decode(method, [prompt] * context.rows, new=new, eos=(), rng=source, device=self.device, rounds=rounds)
            if number >= TEXTS and self._gate.made == made:
                break
        self._gate.open = False
        return rounds


def choose(specs: Sequence[RunSpec], device: torch.device) -> tuple[compiled.Name, str]:
    """(tier, remark on it) of the cells of a pair. UsageError if a tier is not available."""
    spec, alone = specs[0], ""
    if spec.device_map is not None:
        alone = f"--device-map brings weights to {device} layer by layer"
    elif drafting_device(spec, device) is not None:
        alone = "--draft-device has tokens travel between devices in every round"
    elif spec.tensor_parallel is not None:
        alone = "--tensor-parallel waits for other processes in every layer"
    if alone and spec.tier not in (AUTO, "eager"):
        raise UsageError(f"--tier {spec.tier}: {alone}: use --tier eager")
    name, why = compiled.choose("eager" if alone else spec.tier, device)
    if alone:
        return name, why
    kinds = [kind for kind in (spec.quantize, spec.draft_quantize) if kind in {*quantise.UNFUSED, *quantise.CODED}]
    if spec.tier == AUTO and device.type == "cuda" and kinds and not compiled.missing_compiler():
        return "compile", f"a GPU is slow with {kinds[0]} weights in other tiers; to compile a method takes minutes"
    if name != "compile" or device.type != "cpu":
        return name, why
    slow = _slow(specs) if spec.tier == AUTO else ""
    return eager(slow) if slow else (name, why)


def eager(reason: str) -> tuple[compiled.Name, str]:
    """The tier eager, and why."""
    return "eager", f"{reason}; {PYTHON}"


def unfused(pair: CheckedPair, tier: Name) -> list[str]:
    """Notes on weights that a GPU computes more slowly in a tier than unquantised ones."""
    if tier == "compile":
        return []
    on_gpu = {name: role for name, role in pair.roles.items() if (role.device or pair.device).type == "cuda"}
    return [
        f"in the tier {tier} the {role.how.quantize} weights of the {name} {why}, so they are slower on a GPU than "
        "unquantised ones: use --tier compile or --quantize int4"
        for name, role in on_gpu.items()
        if (why := quantise.unfused(role.how.quantize, role.dtype))
    ]


def not_whole(spec: RunSpec) -> str:
    """Why a round that cannot be compiled in parts is not compiled whole; empty if it is."""
    kinds = [kind for kind in (spec.quantize, spec.draft_quantize) if kind in quantise.UNFUSED]
    if kinds:
        return f"where the compiler would unpack {kinds[0]} weights, so that they took the time of unquantised ones"
    return "for minutes, as --tier compile does" if spec.tier == AUTO else ""


def packs(spec: RunSpec, name: compiled.Name, device: torch.device) -> bool:
    """Whether eager passes have packed matrices: faster on a CPU, for weights on one device."""
    whole = spec.device_map is None and spec.tensor_parallel is None
    return name != "graph" and device.type == "cpu" and whole and few_rows.pays()


def _slow(specs: Sequence[RunSpec]) -> str:
    """Why these cells are compiled only on request: they need passes of many shapes, compiled one by one."""
    found = [spec for spec in specs if not form(spec, None).drafter.static]
    if not found:
        return ""
    name = found[0].method if found[0].schedule == "constant" else f"--schedule {found[0].schedule}"
    return f"rounds of {name} differ in shape, and to compile all shapes takes minutes the first time (--tier compile)"


def refused(tier: Name, spec: RunSpec, error: Exception) -> str:
    """Why a tier that auto chose cannot run the rounds of a spec, by the error of preparing them.

    Raises errors unrelated to the tier, and UsageError if the user named the tier.
    """
    if tier == "eager" or isinstance(error, SpecbenchError) or out_of_memory(error):
        raise error
    where = line_of(error) if tier == "graph" else ""  # a driver's error names no operator
    reason = f"rounds of {spec.method} {CANNOT[tier]} here ({type(error).__name__}: {first_line(error)}{where})"
    if spec.tier != AUTO:
        raise UsageError(f"tier {spec.tier}: {reason}; use --tier eager, or auto, which then is eager") from error
    return reason


def line_of(error: BaseException) -> str:
    """Where an error was raised, torch's own lines left out: ", FILE:LINE in FUNCTION"; empty if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename]
    return f", {Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def opened(specs: Sequence[RunSpec], eager_for: str = "") -> Opened:
    """The pair, its tier, and a remark on it. Raises UsageError or UnusableModelError.

    eager_for: unless empty, the reason for eager; the tier must be auto.
    """
    device = description.resolve_device(specs[0].device)
    name, why = eager(eager_for) if eager_for else choose(specs, device)
    try:
        pair = check_models(specs, device, name)
    except UncompiledError as error:
        if specs[0].tier != AUTO:
            raise
        return opened(specs, error.why)
    stateful = recurrent_reason(pair, specs)
    for spec in specs if pair.heads else ():
        refuse_heads(spec, pair.heads)
        refuse_deep(spec, pair.heads, form(spec, None).drafter.depth)
    if reason := joined_reason(pair, specs) or stateful:
        pair = pair if name == "eager" else check_models(specs, device, "eager")  # dtypes depend on the tier
        name, why = eager(reason)
    pair = replace(pair, warnings=(*pair.warnings, *unthinking(specs, pair.thinking), *unfused(pair, name)))
    tier = Tier(name, device, not_whole(specs[0]), packs(specs[0], name, device))
    return pair, tier, f"tier {name}: {why}"
