"""vLLM's offline engine, one process per arm, asked over a pipe.

Knows what its processes are started with and asked for; must not know methods or statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from specbench.backends.apart.backend import Apart, opened
from specbench.backends.apart.engine import Decoded, Request, Start
from specbench.backends.apart.pipe import Child
from specbench.backends.apart.rounds import Finished
from specbench.backends.checked import CheckedPair
from specbench.backends.memory import Estimate
from specbench.backends.vllm import install, ways
from specbench.engine_options import of_engine
from specbench.errors import UnusableModelError
from specbench.spec import RunSpec
from specbench.wording import clean

NAME = install.NAME
SCRIPT = Path(__file__).with_name("child.py")
OPENING, DECODING = 1800.0, 1800.0  # seconds after which a process that says nothing is given up
PAGE = 128  # tokens that a cache of a CPU grows by
LEAST = 256 << 20  # bytes of a cache
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # half the time to start, and nothing beside it that polls
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")  # take workers of their own
QUIET = {
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "KMP_BLOCKTIME": "1",  # milliseconds that its threads poll after a decode, while another engine has its turn
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it leaves out a core, and takes the same one for every process
}  # fmt: skip


def open_pair(specs: Sequence[RunSpec]) -> Apart:
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError."""
    return opened(Vllm(install.python()), specs)


@dataclass(frozen=True)
class Vllm:
    """vLLM by the Python that has it."""

    python: Path
    script: Path = SCRIPT
    patience: tuple[float, float] = (OPENING, DECODING)
    name: ClassVar[str] = NAME

    @property
    def about(self) -> str:
        return "its offline engine, a process per arm; compiled as by default, or with --tier eager as it comes"

    def start(self, spec: RunSpec, pair: CheckedPair, places: int) -> Start:
        ways.refuse_settings(spec)
        ways.refuse_files("target", pair)
        speculative = ways.speculation(spec, pair)
        found = {
            "model": "target",
            "dtype": str(pair.roles["target"].dtype).removeprefix("torch."),
            "max_model_len": places, "max_num_seqs": spec.batch, "kv_cache_memory_bytes": cache(spec, pair, places),
            "enforce_eager": self.tier(spec) == "eager", "enable_prefix_caching": False, "skip_tokenizer_init": True,
            "generation_config": "vllm", "disable_log_stats": False, "trust_remote_code": bool(spec.trust_remote_code),
        }  # fmt: skip
        if speculative is not None:
            found |= {"speculative_config": dict(speculative), "per_request_spec_decode_metrics": "detailed"}
        return {"llm": found | of_engine(spec.engine_option, self.name), "device": pair.device.type}

    def serve(self, start: Start, pair: CheckedPair) -> "Process":
        llm = ways.located(start["llm"], pair)
        child = Child(self.name, [str(self.python), "-I", str(self.script)], variables(self.python, llm))
        try:
            said = child.ask({"op": "open", "llm": llm}, self.patience[0])
            refuse_elsewhere(said, start)
        except BaseException:  # an interrupt as well: it would go on opening
            child.close()
            raise
        return Process(child, self.patience[1])

    def tier(self, spec: RunSpec) -> str:
        return "eager" if spec.tier == "eager" else "compile"  # its own default

    def notes(self, spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
        return (install.version(self.python), *ways.notes_on(spec, pair, ways.speculation(spec, pair)))


@dataclass(frozen=True)
class Process:
    """An engine that was opened."""

    child: Child
    patience: float

    def decode(self, request: Request) -> Decoded:
        draws = [draw(request, seed) for seed in request.seeds]
        message = {"op": "decode", "prompts": [list(prompt) for prompt in request.prompts], "draws": draws}
        said = self.child.ask(message, self.patience)
        return decoded(said, len(draws))

    def close(self) -> None:
        self.child.close()


def refuse_elsewhere(said: Mapping[str, Any], start: Start) -> None:
    """UnusableModelError where it computes on another device than its numbers would be said to be of."""
    if (found := said.get("device")) != start["device"]:
        raise UnusableModelError(
            f"{NAME}: this build computes on {clean(found)}, and the pair is on {start['device']}: choose --device, or "
            f"install another build (`specbench backend install {NAME} --package …`)"
        )


def decoded(said: Mapping[str, Any], prompts: int) -> Decoded:
    """What a process tells of so many prompts. UnusableModelError for what cannot be."""
    try:
        seconds = float(said["seconds"])
        found = [finished(one, seconds) for one in said["found"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableModelError(f"{NAME}: its process told no tokens ({type(error).__name__} {error})") from error
    if len(found) != prompts:
        raise UnusableModelError(f"{NAME}: its process told of {len(found)} prompts, and {prompts} were asked for")
    return Decoded(found, seconds)


def finished(said: Mapping[str, Any], seconds: float) -> Finished:
    counts = (tuple(map(int, said[name])) for name in ("drafted", "accepted"))
    return Finished(tuple(map(int, said["tokens"])), float(said["first"]), seconds, *counts)


def draw(request: Request, seed: int) -> dict[str, Any]:
    """The law of a spec as arguments of SamplingParams."""
    spec = request.spec
    law = {"temperature": spec.temperature, "top_p": spec.top_p or 1.0, "top_k": spec.top_k or 0}
    length = {"max_tokens": spec.max_new_tokens, "ignore_eos": spec.ignore_eos, "stop_token_ids": list(request.ends)}
    return {**law, **length, "seed": seed % (1 << 31), "detokenize": False}


def cache(spec: RunSpec, pair: CheckedPair, places: int) -> int:
    """Bytes of a cache for all rows at once, of the draft as well: else it would take most of a device."""
    rows, length = spec.batch + 1, places + 2 * PAGE
    return max(LEAST, 2 * sum(net.cache(length, rows) for net in Estimate(pair).networks.values()))


def variables(python: Path, llm: Mapping[str, Any]) -> dict[str, str]:
    """What its processes have in their environment: as many threads as ours, and Intel's OpenMP where it is there."""
    alone = {} if any(llm.get(size, 1) != 1 for size in PARALLEL) else IN_PROCESS
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    library = python.parent.parent / "lib" / "libiomp5.so"
    return {**alone, **QUIET, **threads, **({"LD_PRELOAD": str(library)} if library.exists() else {})}
