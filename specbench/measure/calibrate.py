"""Measure the costs of a round without data: target passes by width, drafted tokens, and the remaining overhead.

All calls are those of a real decode, executed in its tier, on random token ids as context: the cost of a dense model
does not depend on the tokens. Every turn times every width once, in random order, so that changes in machine speed
affect all widths.
"""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from specbench import metrics
from specbench.backends.base import Networks
from specbench.backends.roles import undrafted
from specbench.decoding.decode import begin
from specbench.decoding.timing import Clock, clock_for
from specbench.decoding.tokens import TokenTree
from specbench.errors import UnusableModelError, UsageError
from specbench.metrics import Trace
from specbench.models.checkpoints.description import load_config, recurrent, resolve_dtype
from specbench.models.checkpoints.divided import heads_of, kept_by
from specbench.models.checkpoints.names import GROWN, resolve
from specbench.models.checkpoints.quantise import method_of
from specbench.models.network.skipping import layers_with_experts
from specbench.models.scale import growth
from specbench.models.scale.shapes import shapes
from specbench.results.calibration import AtContext, Calibration, points_of
from specbench.results.numbers import timing
from specbench.spec import RunSpec
from specbench.theory import optimum
from specbench.theory.optimum import Costs
from specbench.theory.roofline import Reads

WARMUP = 2  # uncounted turns
LONG = 5  # drafts of one and of five tokens give the cost of the first and of a later token
LOOKAHEAD, TOKENS = 4, 16  # of the short decodes that give a baseline step and the overhead of a round
QUICK_CONTEXT, QUICK_REPEAT = 256, 5

T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)
Arm = tuple[str, int]  # (model, width)


def calibrate(
    networks: Networks,
    contexts: Sequence[int],
    widths: Sequence[int],
    repeat: int,
    seed: int,
    *,
    spec: RunSpec | None = None,
    clock: Clock | None = None,
    watch: Callable[[int], None] = lambda context: None,
) -> Calibration:
    """Measure at every context length; `spec` sets how models sample; `watch` is called with each length.

    UsageError if a length leaves no room in the models' context (see `fitting`).
    """
    spec, clock = spec or RunSpec(), clock or clock_for(networks.device)
    order, found = random.Random(seed), []
    for context in contexts:
        watch(context)
        with networks.gradless():
            found.append(at_context(networks, context, sorted({1, *widths}), repeat, order, spec, clock))
    return Calibration(tuple(found))


def fitting(contexts: Sequence[int], widest: int, networks: Networks) -> list[int]:
    """The context lengths, cut to leave room for the widest pass and a short decode after it."""
    most = networks.context - max(widest, TOKENS)
    if most < 1:
        raise UsageError(
            f"the models' context of {networks.context} tokens leaves no room for {max(widest, TOKENS)} tokens after "
            "another: choose smaller --widths"
        )
    return sorted({min(context, most) for context in contexts})


def quick_costs(networks: Networks, k: int, spec: RunSpec | None = None) -> Costs:
    """A quick calibration for lookaheads up to k, at one context length: used before `--k auto`."""
    widths = [width for width in range(1, k + 1) if width <= 8 or width.bit_count() == 1]
    (context,) = fitting([QUICK_CONTEXT], k + 1, networks)
    return calibrate(networks, [context], [*widths, k + 1], QUICK_REPEAT, seed=0, spec=spec).costs(context)


def at_context(
    networks: Networks,
    context: int,
    widths: Sequence[int],
    repeat: int,
    order: random.Random,
    spec: RunSpec,
    clock: Clock,
) -> AtContext:
    prompt = [order.randrange(networks.width) for _ in range(context)]
    decodes = decodes_of(networks, prompt, spec)  # first: a tier that fails is left by them
    passes = passes_of(networks, prompt, widths, spec, clock)
    seconds: dict[Arm, list[float]] = {arm: [] for arm in passes}
    rests: list[tuple[float, float]] = []
    for number in range(WARMUP + repeat):
        times, traces = in_random_order(passes, order), in_random_order(decodes, order)
        if number >= WARMUP:
            rests.append(rest(traces["baseline"], traces["chain"]))
            for arm, value in times.items():
                seconds[arm].append(value)
    share, overhead = (median(values) for values in zip(*rests, strict=True))
    found = {m: points_of(m, context, {w: seconds[m, w] for n, w in passes if n == m}) for m in ("target", "draft")}
    # Derived from the pass by its share, not from the decode's seconds: a median of short calls resists
    # disturbances, while a long decode includes them all, and the two would be inconsistent.
    step = found["target"][0].milliseconds / share
    return AtContext(context, step, overhead, found["target"], found["draft"])


def in_random_order(arms: Mapping[Name, Callable[[], T]], order: random.Random) -> dict[Name, T]:
    """The results of all arms, called in random order."""
    return {name: arms[name]() for name in order.sample(list(arms), len(arms))}


def passes_of(
    networks: Networks, prompt: Sequence[int], widths: Sequence[int], spec: RunSpec, clock: Clock
) -> dict[Arm, Callable[[], float]]:
    """The timed calls: a verify pass of the target for every width, and drafts of one and of five tokens.

    A pass over n tokens covers the last committed token and a chain of n − 1 drafted ones. Nothing is
    committed, so every call has the same context.
    """
    # prepared for this many drafted tokens: a head that drafts in one pass is set up for a fixed number
    models = networks.models(spec.with_(k=max(spec.k, LONG)))
    source = networks.source(spec, [spec.seed % 2**63])
    context = begin([prompt], max(*widths, LONG), max(*widths, LONG), [], networks.device)
    for model in models.values():
        model.start(context)

    def verify(width: int) -> Callable[[], float]:
        tree = TokenTree.chain(context.seq[:, torch.arange(width - 1, device=networks.device) % len(prompt)])
        part = networks.alone(spec, lambda: models["target"].probs(context, tree))
        # the second one counts: a decode repeats passes of one width, so that the cache holds small weights
        return lambda: [timed(part, clock) for _ in range(2)][1]

    def draft(tokens: int) -> Callable[[], float]:
        part = networks.alone(spec, lambda: models["draft"].sample(context, tokens, source))
        return lambda: timed(part, clock)

    return {("target", w): verify(w) for w in widths} | {("draft", n): draft(n) for n in (1, LONG)}


def timed(call: Callable[[], object], clock: Clock) -> float:
    clock.start()
    call()
    return clock.stop()[0]


def decodes_of(networks: Networks, prompt: Sequence[int], spec: RunSpec) -> dict[str, Callable[[], Trace]]:
    """Two short decodes with their phases: the baseline, and a chain with a constant lookahead."""
    tokens = min(TOKENS, networks.context - len(prompt))
    chain = spec.with_(method="chain", k=LOOKAHEAD, schedule="constant", max_new_tokens=tokens, ignore_eos=True)

    def arm(one: RunSpec) -> Callable[[], Trace]:
        run = networks.prepare(one, len(prompt))
        return lambda: run([prompt], [spec.seed % 2**63])[0]

    return {"baseline": arm(chain.baseline), "chain": arm(chain)}


def rest(baseline: Trace, chain: Trace) -> tuple[float, float]:
    """The pass's share of a baseline step; the cost that acceptance and host add to a round, in steps."""
    alone, many = timing([baseline]), timing([chain])
    step = metrics.ratio(alone.seconds, alone.rounds)
    one, other = optimum.phases(alone), optimum.phases(many)
    return metrics.ratio(one.verify, step), metrics.ratio(other.accept + other.host - one.accept - one.host, step)


# --- before a measurement ---------------------------------------------------------------------------------------------
# The sizes of a pair from its configurations; and pairs of the same shapes with fewer layers, quick to measure.

SMALLEST = "demo-draft"  # it has one layer, so it can be grown to shapes of any depth
ENOUGH = 1.5e9  # bytes: more than the caches of a processor hold
Sizes = tuple[Reads, Reads]


def sizes_of(spec: RunSpec) -> Sizes:
    """Target and draft as their passes read them. Shapes need no hub; of others the configuration alone is fetched.

    UnusableModelError for stored quantised weights, experts and recurrent states, whose bytes depend on more.
    """
    target = config_of(spec.target, spec.target_revision)
    if spec.draft is None:
        raise UsageError(undrafted(spec.target))
    dtype = resolve_dtype(spec.dtype, target, torch.device("cuda"))
    draft = config_of(spec.draft, spec.draft_revision)
    its = resolve_dtype(spec.draft_dtype, draft, torch.device("cuda")) if spec.draft_dtype else dtype
    named = ((spec.target, target, dtype, spec.quantize), (spec.draft, draft, its, spec.draft_quantize))
    one, other = (reads_of(name, config, own.itemsize, kind) for name, config, own, kind in named)
    return one, other


def config_of(name: str, revision: str | None) -> Any:
    """The configuration of a model; a name that is also that of a shape has its sizes."""
    return load_config(resolve(f"{SMALLEST}{GROWN}{name}" if name in shapes() else name, revision))


def reads_of(name: str, config: Any, item: int, quantised: str | None) -> Reads:
    """The numbers that a pass of a network with this configuration reads."""
    if kind := method_of(config):
        raise UnusableModelError(
            f"{name}: its weights are stored as {kind}, whose kernels are not known here: name the unquantised "
            "checkpoint, and add --quantize"
        )
    net = growth.skeleton(config)
    if recurrent(config) or layers_with_experts(net):
        raise UnusableModelError(
            f"{name}: what a pass of {config.model_type} reads depends on more than sizes (experts, or a recurrent "
            "state): measure it with specbench calibrate"
        )
    table, head = net.get_input_embeddings().weight, net.get_output_embeddings().weight
    ends = head.numel() + (0 if table is head else table.numel())
    text = config.get_text_config(decoder=True)
    layers, groups = text.num_hidden_layers, heads_of(text)[1]
    matrices = sum(weight.numel() for weight in net.parameters()) - ends
    return Reads(layers, matrices, head.numel(), layers * kept_by(net), groups, item, quantised)


@dataclass(frozen=True)
class Cut:
    """A model with fewer layers at two depths: names for a deep and a shallow one, and `way`, see `extrapolated`."""

    deep: str
    shallow: str
    way: float
    words: str


def cut(name: str) -> Cut:
    """A model as it is quickly measured: a shape with as many layers as 1.5 GB hold, and with a quarter of these.

    Any other model must be on this machine, and is measured as it is: UsageError if it is not.
    """
    shape = shapes()[name] if name in shapes() else resolve(name).shape
    if shape is None:
        if not Path(resolve(name).source).is_dir():
            raise UsageError(
                f"--hardware cpu measures layers of shapes ({', '.join(shapes())}) or models that are on this machine, "
                f"and {name} is neither: fetch it (specbench check {name} says how), or name a shape"
            )
        return Cut(name, name, 1.0, name)
    fits = [n for n in range(1, shape.num_hidden_layers + 1) if 4 * shape.of_depth(n).parameters <= ENOUGH]
    layers, deep = shape.num_hidden_layers, max(fits, default=min(2, shape.num_hidden_layers))
    few = max(1, deep // 4) if deep < layers else deep
    way = (layers - few) / (deep - few) if deep > few else 1.0
    one, other = (f"{SMALLEST}{GROWN}{shape.of_depth(depth).name}" for depth in (deep, few))
    return Cut(one, other, way, f"{shape.name} with {deep} of {layers} layers" if deep < layers else shape.name)
