"""The memory demand of a checked pair for some cells, estimated before any weight is read; and what would lower it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from specbench.backends import heads
from specbench.backends.base import Held
from specbench.backends.checked import CheckedPair
from specbench.backends.roles import form, places, whatever_prompts
from specbench.decoding.method_files import drafts_with, leaves, needs, read_method
from specbench.decoding.protocols import STRETCH
from specbench.models.checkpoints import divided
from specbench.models.checkpoints.divided import network_sizes
from specbench.models.execution.compiled import missing_compiler
from specbench.models.execution.few_rows import dtypes
from specbench.models.execution.machine import free_memory
from specbench.models.network.skipping import shares
from specbench.spec import RunSpec
from specbench.theory.memory import Arm, Demand, Network, Part, parts, total

SMALL = torch.bfloat16
ROWS_KEPT = ("Distilled", "rows")  # the field for the number of rows that a draft learns from
TWINS = ("Streaming", "Retrieval")  # parts of a method with a second cache for the model that they read


@dataclass(frozen=True)
class Estimate:
    """The demand of a pair. keeps: compiled or captured arms outlive their cells; lays_out:
    compiled code has its own layout of the weights; packs: eager passes have one; releases:
    that packed copy is then the only one, except for embeddings."""

    pair: CheckedPair
    keeps: bool = False
    lays_out: bool = False
    packs: bool = False
    releases: bool = False

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """The peak demand, and the demand with other settings; None for a network with unexpected sizes: then
        only running out of memory will show it."""
        try:
            most = max(net.read for net in self.networks.values())
        except (AttributeError, TypeError, ValueError, KeyError):
            return None
        return Demand(
            self.parts(held),
            most,
            lambda: {name: change.parts(other) for name, change, other in self.others(held)},
            {spec.key: total(self.parts([replace(one, specs=[spec])])) for one in held for spec in one.specs},
        )

    def parts(self, held: Sequence[Held]) -> list[Part]:
        longest = max((one.prompt for one in held), default=0)
        arms = kept_arms(held) if self.keeps else [one.arms for one in held]
        prompts = [longest if self.keeps else one.prompt for one in held]
        groups = [[self.arm(spec, prompt) for spec in some] for some, prompt in zip(arms, prompts, strict=True)]
        found = parts(self.networks, groups)
        return [*found, *self.reading(total(found))] if self.pair.device.type == "cpu" else found

    def reading(self, later: int) -> list[Part]:
        """The extra memory for unpacking GGUF files beyond what is held later; other weights are read one by one."""
        unpacked = [net.read for name, net in self.networks.items() if self.pair.roles[name].checkpoint.file]
        more = sum(net.weights for net in self.networks.values()) + max(unpacked, default=0) - later
        return [Part("reading", "working memory", more)] if unpacked and more > 0 else []

    def others(self, held: Sequence[Held]) -> list[tuple[str, "Estimate", Sequence[Held]]]:
        """Settings that need less memory: their names and effects."""
        found: list[tuple[str, Estimate, Sequence[Held]]] = []
        if any(role.dtype.itemsize > SMALL.itemsize for role in self.pair.roles.values()):
            found.append(("--dtype bfloat16", self.in_(SMALL), held))
        if self.pair.device.type != "cpu" and not any(role.how.quantize for role in self.pair.roles.values()):
            if not (missing_compiler() or any(role.apart for role in self.pair.roles.values())):
                compiled = replace(self.loaded(quantize="int8"), keeps=True)
                found.append(("--quantize int8 --tier compile", compiled, held))  # other tiers would unpack it
            found.append(("--quantize int4", self.loaded(quantize="int4"), held))
        if any(len(one.arms) > 2 for one in held):
            largest = [replace(one, specs=[self.largest(one)]) for one in held]
            found.append(("one method and one K at a time", self, largest))
        if any(spec.batch > 1 for one in held for spec in one.specs):
            alone = [replace(one, specs=[spec.with_(batch=1) for spec in one.specs]) for one in held]
            found.append(("--batch 1", self, alone))
        if self.lays_out:
            found.append(("--tier eager", replace(self, keeps=False, lays_out=False, packs=False), held))
        target = self.pair.roles["target"]
        whole = not (target.how.device_map or target.how.parallel)
        if whole and not divided.obstacle(target.checkpoint, target.how.quantize):
            found.append((f"{divided.OPTION} auto (slow)", self.loaded(device_map=divided.AUTO), held))
        return found

    def in_(self, dtype: torch.dtype) -> "Estimate":
        """The same with all weights in another dtype."""
        roles = {name: replace(role, dtype=dtype) for name, role in self.pair.roles.items()}
        return replace(self, pair=replace(self.pair, roles=roles))

    def loaded(self, **changes: Any) -> "Estimate":
        """The same with other load settings for the target."""
        target = self.pair.roles["target"]
        roles = {**self.pair.roles, "target": replace(target, how=replace(target.how, **changes))}
        return replace(self, pair=replace(self.pair, roles=roles))

    def largest(self, held: Held) -> RunSpec:
        return max(held.specs, key=lambda spec: self.arm(spec, held.prompt).caches)

    @cached_property
    def networks(self) -> Mapping[str, Network]:
        found = {}
        for name, role in self.pair.roles.items():
            if role.head and role.borrows:
                net = heads.sizes_of(role, role.head, self.pair.roles["target"])
            else:
                net = network_sizes(role.config, role.dtype, role.device or self.pair.device, role.how)
                if role.checkpoint.file:  # unpacked whole before its first weight is in place
                    net = replace(net, read=net.read + net.weights)
            if role.device is not None:  # only its rows are in the memory that is estimated
                net = replace(net, weights=0, read=0, kept=0)
            found[name] = replace(net, packed=self.packed(name, net))
        return found

    def packed(self, name: str, network: Network) -> int:
        """The bytes of the matrices that are packed, once or twice. The embedding is not
        packed; of quantised weights, which are packed already, only the head is."""
        role, table = self.pair.roles[name], network.vocabulary * network.hidden * network.item
        layouts = self.lays_out + (self.packs and role.dtype in dtypes())
        if not layouts:
            return 0
        tied = role.config.get_text_config(decoder=True).tie_word_embeddings
        if self.releases:
            return table if tied else 0
        return layouts * (table if role.how.quantize else network.weights if tied else network.weights - table)

    def arm(self, spec: RunSpec, prompt: int) -> Arm:
        names = sorted(needs(spec.method), key=lambda name: (name != "target", name))  # in the order of their caches
        fields = list(leaves(read_method(spec.method)["method"]))
        twins = [str(value) for part, key, value in fields if key == "model" and part in TWINS]
        cached = [self.network(name) for name in (*(name for name in names if not shares(name)), *twins)]
        rows = [value for part, key, value in fields if (part, key) == ROWS_KEPT]
        length, nodes = places(spec, prompt, None), form(spec, None).drafter.room
        return Arm(cached, prompt, length, nodes, spec.batch, self.learning(spec.method, rows))

    def learning(self, method: str, kept: Sequence[int]) -> int:
        """Bytes of drafts that learn while decoding this many rows; if one of a method does, all its drafts count."""
        bases = [self.pair.kept.get(name, (name, ()))[0] for name in drafts_with(method)]
        vocabulary = self.networks["target"].vocabulary
        return sum(self.networks[base].learning(rows, vocabulary) for rows in kept for base in bases)

    def network(self, name: str) -> Network:
        """The network of a role or of its selected layers; with another tokenizer its cache has more slots."""
        base, layers = self.pair.kept.get(name, (name, None))
        found = self.networks[base] if layers is None else self.networks[base].of_layers(len(layers))
        return replace(found, kept=STRETCH * found.kept) if base in self.pair.foreign else found


def kept_arms(held: Sequence[Held]) -> list[list[RunSpec]]:
    """The arms held while each group is measured: its own, and those of earlier groups that later ones share."""
    groups = [dict.fromkeys(map(whatever_prompts, one.arms)) for one in held]
    found = []
    for number, group in enumerate(groups):
        before, after = (set(chain(*some)) for some in (groups[:number], groups[number + 1 :]))
        found.append([*group, *((before & after) - set(group))])
    return found


def free_for(demand: Demand, device: torch.device) -> bool:
    """Whether a device has enough memory, as far as it reports."""
    free = free_memory(device)
    return free is None or total(demand.parts) <= free
