"""The code of compiled rounds for an H100, made on a machine without one: what fails, and what a round launches.

    python -m tests.benchmarks.cuda_code [--methods chain,tree-top] [--k 4] [--by layer] [--layers 2] [--temperature 1]
        [--save FILE]

It needs torch's CUDA build, which runs without a driver, and Triton. Tensors are fake ones of a device `cuda`, whose
properties are an H100's. Dynamo traces a round, inductor generates its code, and Triton compiles every kernel of it,
in the first of its configurations, to machine code of sm_90. Nothing runs and nothing is timed; so products of several
rows stay calls of cuBLAS, which inductor might replace by kernels of its own where it can measure them.

Launches are kernels and calls of libraries in the order of the code, by the lap that follows them: what a round still
computes after its last lap (its counts, the new state) is in the column "after". "operators" is the number of kernels
without a compiler, as in the tiers eager and graph. A copy from the host cannot be captured.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor
from torch.fx import GraphModule

from specbench.decoding import tokens
from specbench.decoding.decode import begin
from specbench.decoding.method_files import needs
from specbench.decoding.methods import build
from specbench.decoding.randomness import FromUniforms, Stream
from specbench.decoding.rounds import Play, Whole
from specbench.decoding.timing import WallClock
from specbench.models.execution.compiled import ON_CUDA, quiet, unshared
from specbench.models.execution.regions import cut, trace
from specbench.models.network.attention import NAME
from specbench.models.network.sampling import Sampling
from specbench.wording import first_line
from tests.benchmarks import harness
from tests.benchmarks.harness import Row, Sheet, say
from tests.support import meta

CUDA = torch.device("cuda", 0)
H100 = SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    L2_cache_size=50 << 20, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10, gcnArchName="",
)  # fmt: skip
# what inductor would measure, or fold by computing it, on the device
UNMEASURED = {"max_autotune": False, "shape_padding": False, "joint_graph_constant_folding": False}
HERE = {"compile_threads": 1, "fx_graph_cache": False, "use_static_triton_launcher": False}
LENGTH = 256  # slots of a sequence
CALL = re.compile(r"(?:(triton_\w+)\.run|(extern_kernels\.\w+)|= (torch\.ops\.\w+\.\w+)[\w.]*)\(")
LAP = re.compile(r"torch\.ops\.specbench\.lap\.default\(.*, '([\w/]+)'\)")
OF_THE_HOST = re.compile(r"\bcpp_fused_\w+\(|copy_\(.*cpu|device_put")
PHASES = ("draft", "verify", "accept", "after")


def missing() -> str:
    """Why no code can be made for a GPU here; empty if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA: install torch's CUDA build in an environment of its own"
    if torch.cuda.is_available():
        return "this machine has a GPU: run `python -m tests.benchmarks.gpu` instead"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is missing: it comes with torch's CUDA build"
    return ""


@contextmanager
def an_h100() -> Iterator[None]:
    """Let torch, inductor and Triton find a GPU that is not there."""
    import triton
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime import triton_helpers
    from torch._subclasses import FakeTensorMode
    from torch.utils import _triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", 10 * H100.major + H100.minor, H100.warp_size)
    driver = SimpleNamespace(
        get_current_target=lambda: target, get_active_torch_device=lambda: CUDA, get_current_device=lambda: 0,
        get_device_interface=lambda: torch.cuda, get_current_stream=lambda device=None: 0,
    )  # fmt: skip
    triton.runtime.driver.set_active(driver)
    found = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "_get_device_properties": lambda *_: H100, "get_device_properties": lambda *_: H100,
        "get_device_capability": lambda *_: (H100.major, H100.minor), "_lazy_init": lambda: None,
        "_get_device": lambda *_: 0, "_exchange_device": lambda index: 0, "_maybe_exchange_device": lambda index: 0,
        "is_current_stream_capturing": lambda: False, "synchronize": lambda *_: None,
        "get_rng_state": lambda *_: torch.empty(0, device="cpu"), "set_rng_state": lambda *_: None,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, one in found.items():
            patch.setattr(torch.cuda, name, one, raising=False)
        patch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
        patch.setattr(GraphLowering, "constant_name", lambda graph, name, device: name)  # it would send long ones there
        patch.setattr(FakeTensorMode, "avoid_device_init", property(lambda mode: True))
        patch.setattr("torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT", 0)  # it would compute these there
        patch.setattr(F, "scaled_dot_product_attention", chosen_attention)
        patch.setattr(tokens, "sent", made_there)
        for one in vars(_triton).values():
            if hasattr(one, "cache_clear"):
                one.cache_clear()
        yield


def made_there(data: Tensor, device: torch.device) -> Tensor:
    """In place of data that is sent: its memory cannot be pinned without a driver."""
    return torch.empty(data.shape, dtype=data.dtype, device=device)


def chosen_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """The function that torch calls on such a GPU: flash attention, or the memory-efficient one if there is a mask."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    if attn_mask is None:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]  # type: ignore[no-any-return]
    efficient, mask = torch.ops.aten._scaled_dot_product_efficient_attention, attn_mask.expand(*query.shape[:2], -1, -1)
    return efficient(query, key, value, mask, False, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def llama(layers: int, **shape: int) -> Any:
    """As `meta.llama`, of fake tensors on the GPU."""
    config = hf.LlamaConfig(num_hidden_layers=layers, vocab_size=meta.VOCAB, dtype=torch.bfloat16, **shape)  # type: ignore[arg-type]
    with CUDA:
        made = hf.AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=config.dtype)
    return made.eval().requires_grad_(False)


def round_of(method: str, k: int, law: Sampling, layers: int) -> Play:
    """A round as it is compiled, ready to be traced; in fake mode."""
    target = llama(layers, hidden_size=4096, intermediate_size=11008, num_attention_heads=32)
    draft = llama(1, hidden_size=768, intermediate_size=3072, num_attention_heads=12)
    plays, device = list[Play](), meta.Device()
    device.reads = len(meta.PROMPT) - 1  # what the host reads of the prompt while rounds are made ready

    def uniforms(shape: tuple[int, ...], stream: Stream) -> Tensor:
        return torch.empty(shape, dtype=torch.float64, device=CUDA)

    def ready(play: Play) -> Play:
        plays.append(play)
        return play

    with pytest.MonkeyPatch.context() as patch, device:
        patch.setattr(meta, "draft", lambda: draft)
        built = build(method, meta.models(needs(method), target, law), k, WallClock())
        context = begin([meta.PROMPT], meta.NEW, built.drafter.room, [0], CUDA, LENGTH)
        rounds = Whole(built, LENGTH, (LENGTH,), ready)
        rounds.prime(context, FromUniforms(uniforms, law.certain))
    return plays[0]


@dataclass
class Made:
    """The code that inductor generated for a round, and the kernels in it, by name."""

    parts: list[str] = field(default_factory=list)
    kernels: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> str:
        """The functions that launch, in order."""
        return "\n".join(part.partition("def call(")[2] or part for part in self.parts)

    @property
    def launches(self) -> Iterator[tuple[str, str]]:
        """(phase, kernel or function of a library) of every launch, in order."""
        pending = list[str]()
        for line in self.calls.splitlines():
            if lap := LAP.search(line):
                yield from ((lap[1].partition("/")[0], name) for name in pending)
                pending = []
            elif call := CALL.search(line):
                pending.append(next(filter(None, call.groups())))
        yield from (("after", name) for name in pending)

    def add(self, graph: Any, inputs: Any) -> Any:
        """Generate the code of a graph; the graph itself, as a backend of dynamo gives it."""
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        def inner(graph: Any, inputs: Any, **more: Any) -> Any:
            code = compile_fx_inner(graph, inputs, **more)
            self.parts.append(code.source_code.replace("triton_", mine))
            return code

        def kept(kernel: Any, *_: Any, **__: Any) -> None:  # in place of loading it
            self.kernels[kernel.inductor_meta["kernel_name"].replace("triton_", mine)] = kernel

        mine = f"triton_{len(self.parts)}_"  # parts have kernels of the same names
        given = {**ON_CUDA, **UNMEASURED, **HERE}
        with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch(given), quiet():
            patch.setattr(CachingAutotuner, "precompile", kept)
            compile_fx(graph, inputs, inner_compile=inner)
        return graph.forward


def whole(play: Play) -> Made:
    """The code of a round as one graph. Raises what dynamo and inductor raise."""
    made = Made()
    torch.compile(unshared(play), fullgraph=True, dynamic=False, backend=made.add)()
    return made


def by_layers(play: Play) -> Made:
    """The code of a round that is cut where layers and phases begin, as on a CPU: equal parts once."""
    made, known = Made(), dict[str, str]()
    for step in cut(trace(play), frozen=False).steps:
        if isinstance(step, str):
            made.parts.append(f"torch.ops.specbench.lap.default(x, '{step}')")
        elif step.key in known:
            made.parts.append(known[step.key])
        else:
            made.add(
                GraphModule({}, step.graph),
                [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in step.like],
            )
            known[step.key] = made.parts[-1]
    return made


@dataclass(frozen=True)
class Machine:
    """What the machine code of a kernel takes: registers of a thread, bytes of its stack (spilled registers), and bytes
    of shared memory of a block."""

    registers: int
    stack: int
    shared: int


def compiled(kernel: Any) -> Machine:
    """Machine code of a kernel of inductor in its first configuration."""
    with torch._inductor.config.patch(HERE):
        made = kernel._precompile_config(kernel.configs[0]).kernel
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [tool("cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    known = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return Machine(known["REG"], known["STACK"] + known["LOCAL"], made.metadata.shared)


@cache
def tool(name: str) -> str:
    """A program that comes with Triton."""
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


WAYS = {"round": whole, "layer": by_layers}


def row(args: argparse.Namespace, method: str, law: Sampling) -> Row:
    """All that is known of the code of a method."""
    from torch._subclasses import FakeTensorMode

    plain = sum(meta.steady_round(method, args.k, law, whole=meta.target(args.layers)).values())
    found: dict[str, Any] = {"method": method, "operators": plain}
    torch.compiler.reset()
    try:
        with an_h100(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            made = WAYS[args.by](round_of(method, args.k, law, args.layers))
        with an_h100():
            machine = {name: compiled(kernel) for name, kernel in made.kernels.items()}
    except Exception as error:  # whatever torch raises is the result
        return found | {"fails": f"{type(error).__name__}: {first_line(error)[:200]}"}
    launches = list(made.launches)
    phases, names = Counter(phase for phase, _ in launches), [name for _, name in launches]
    libraries = Counter("attention" if "attention" in name else "cuBLAS" for name in names if name not in machine)
    return found | {
        "launches": len(launches),
        **{phase: phases[phase] for phase in PHASES},
        "kernels": len(machine),
        "cuBLAS": libraries["cuBLAS"],
        "attention": libraries["attention"],
        "copies from the host": len(OF_THE_HOST.findall(made.calls)),
        "most registers": max(one.registers for one in machine.values()),
        "spilled bytes": sum(machine[name].stack for name in names if name in machine),
        "most shared memory": max(one.shared for one in machine.values()),
    }


def options() -> argparse.ArgumentParser:
    found = harness.parser(__doc__)
    found.add_argument("--methods", default="baseline,chain,block,tree-top,prompt-lookup", help="(%(default)s)")
    found.add_argument("--k", type=int, default=4, help="(4)")
    found.add_argument("--by", choices=WAYS, default="round", help="what is compiled at a time (round)")
    found.add_argument("--layers", type=int, default=1, help="of the target, each as wide as one of Llama 7B (1)")
    found.add_argument("--temperature", type=float, default=1.0, help="(1)")
    return found


def main() -> None:
    args = options().parse_args()
    if reason := missing():
        raise SystemExit(f"cuda_code: {reason}")
    args.device = "cpu"
    bench = harness.begin("cuda_code", "The code of compiled rounds for an H100", args)
    rows = list[Row]()
    for method in harness.listed(args.methods):
        say(f"{method}: its code is generated and compiled")
        rows.append(row(args, method, Sampling(args.temperature)))
    pair = f"a target of {args.layers} layers of Llama 7B, a draft of one of Llama 68M"
    what = f"One round, compiled by the {args.by}, K {args.k}, {pair}"
    note = f"torch {torch.__version__}; machine code of sm_90, never run; first configuration of every kernel"
    bench.publish([Sheet(what, rows, [note])])


if __name__ == "__main__":
    main()
