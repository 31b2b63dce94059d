"""The time of a pass and of a round on a GPU, before anything is measured: from bytes, arithmetic, launches, attention.

A pass takes launches · time of a kernel + bytes of weights ÷ bandwidth + operations ÷ peak + attention. The terms are
added, not overlapped: SpecDecode-Bench's fit to vLLM on an H100, F + u · tokens, is linear as well. Eager passes take
at least the host's time for their launches. Keys and values are read at the full bandwidth without a mask; under a
mask one thread block reads those of a key head, or a part of many of them (`models.network.attention`), and parts are
merged by further kernels. Constants and their sources: configs/hardware.yaml.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from specbench.errors import UsageError
from specbench.files import CONFIGS, read_checked
from specbench.wording import near

FILE = CONFIGS / "hardware.yaml"
GIGA, TERA, MICRO = 1e9, 1e12, 1e-6
WIDE = 4  # bytes of a float32
LONG, PART = 1024, 256  # keys from which they are divided, and those of a part at least


class Constant(NamedTuple):
    """A number and its source, in the units of the file."""

    value: float
    source: str


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Gpu(_Entry):
    """A GPU and the host that launches its kernels; units in the file. compared: how far predictions were from it."""

    title: str
    compared: str = ""
    bandwidth: Constant
    products: Constant
    peak: Constant
    peak_float32: Constant
    block: Constant
    blocks: Constant
    call: Constant
    kernel: Constant
    fused: Constant
    loop: Constant
    wait: Constant


class Launches(_Entry):
    """The kernels of one tier: per layer and outside the layers (`whole`)."""

    layer: Constant
    whole: Constant
    verify_layer: Constant
    verify_whole: Constant
    draft_whole: Constant
    merge: Constant
    step: Constant
    accept: Constant


class Table(_Entry):
    """The file: GPUs by name, launches by tier, bytes per quantised weight by kind and tier."""

    gpus: dict[str, Gpu]
    launches: dict[str, Launches]
    weights: dict[str, dict[str, Constant]]


@cache
def shipped() -> Table:
    return read_checked(FILE, Table.model_validate)


@dataclass(frozen=True)
class Reads:
    """A network as its passes read it, in numbers, not bytes.

    matrices: those in its layers; head: those of its output rows; kept: cached per token, keys and values of all
    layers; groups: key heads of a layer; item: bytes of a number; quantised: the kind of the matrices, if they are.
    """

    layers: int
    matrices: int
    head: int
    kept: int
    groups: int
    item: int
    quantised: str | None = None


@dataclass(frozen=True)
class Engine:
    """A GPU in one tier. All times are in seconds, for `rows` sequences decoded together."""

    gpu: Gpu
    tier: str
    launches: Launches
    weights: Mapping[str, Mapping[str, Constant]]
    rows: int = 1

    @classmethod
    def of(cls, name: str, tier: str, rows: int = 1) -> "Engine":
        """The engine on a GPU of the file. UsageError for an unknown name or a tier that GPUs do not have."""
        table = shipped()
        if name not in table.gpus:
            raise UsageError(
                f"unknown hardware {name[:60]!r}{near(name, table.gpus)}: choose one of {', '.join(table.gpus)}, cpu"
            )
        return cls(table.gpus[name], tier, table.launches[tier], table.weights, rows)

    def step(self, net: Reads, context: int) -> float:
        """A decode step of the baseline: a pass and what is outside it."""
        return self.alone(net, context) + self.spent(self.launches.step.value)

    def alone(self, net: Reads, context: int) -> float:
        """The baseline's pass over one token. Only an eager one of a single sequence has no mask."""
        launches = net.layers * self.launches.layer.value + self.launches.whole.value
        return self.passing(net, 1, context, launches, masked=self.tier != "eager" or self.rows > 1)

    def verify(self, net: Reads, context: int, tokens: int) -> float:
        """A verify pass over several tokens."""
        launches = net.layers * self.launches.verify_layer.value + self.launches.verify_whole.value
        return self.passing(net, tokens, context, launches)

    def draft(self, net: Reads, context: int) -> float:
        """A drafted token: a pass and its draw."""
        launches = net.layers * self.launches.layer.value + self.launches.draft_whole.value
        return self.passing(net, 1, context, launches)

    def rest(self) -> float:
        """All of a round outside its passes: acceptance, and the host."""
        host = self.gpu.loop if self.tier == "eager" else self.gpu.wait
        return self.spent(self.launches.accept.value) + MICRO * host.value

    def passing(self, net: Reads, tokens: int, context: int, launches: float, masked: bool = True) -> float:
        """A pass over `tokens` tokens of every row, after `context` others."""
        read = self.read(net) / (GIGA * self.gpu.bandwidth.value * self.gpu.products.value)
        peak = self.gpu.peak_float32 if net.item >= WIDE else self.gpu.peak
        work = 2 * (net.matrices + net.head) * tokens * self.rows / (TERA * peak.value)
        divided = masked and self.parts(net, context) > 1
        launches += net.layers * self.launches.merge.value if divided else 0
        return self.spent(launches, read + work + self.attention(net, context, masked))

    def spent(self, launches: float, more: float = 0.0) -> float:
        """Kernels and further device time; eager: at least the host's time for their launches."""
        kernel = self.gpu.fused if self.tier == "compile" else self.gpu.kernel
        device = MICRO * launches * kernel.value + more
        return max(device, MICRO * launches * self.gpu.call.value) if self.tier == "eager" else device

    def read(self, net: Reads) -> float:
        """Bytes of weights that a pass moves. UsageError for a quantisation without known kernels."""
        size: float = net.item
        if net.quantised is not None:
            if net.quantised not in self.weights:
                raise UsageError(
                    f"--quantize {net.quantised}: its kernels on a GPU are not known here; predict "
                    f"{', '.join(self.weights)} or none"
                )
            size = self.weights[net.quantised][self.tier].value
        return net.matrices * size + net.head * net.item

    def attention(self, net: Reads, context: int, masked: bool) -> float:
        """Reading keys and values of `context` tokens; under a mask at most at the rate of the running blocks."""
        size = net.kept * net.item * context * self.rows
        blocks = net.groups * self.rows * self.parts(net, context)
        by_blocks = self.gpu.block.value * min(blocks, self.gpu.blocks.value)
        return size / (GIGA * (min(self.gpu.bandwidth.value, by_blocks) if masked else self.gpu.bandwidth.value))

    def parts(self, net: Reads, context: int) -> int:
        """Into how many parts the keys of a head are divided under a mask."""
        wanted = -(-int(self.gpu.blocks.value) // (net.groups * self.rows))
        return max(min(wanted, context // PART), 1) if context >= LONG else 1
