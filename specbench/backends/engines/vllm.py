"""vLLM's offline engine, one process per arm behind a pipe; and its arguments for a method, or a refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from specbench.backends.base import drafting, refuse_settings
from specbench.backends.checked import CheckedPair
from specbench.backends.engines.external import Finished, Prompts, Start, files_of, refuse_ours
from specbench.backends.engines.install import VLLM, installed
from specbench.backends.engines.process import Child
from specbench.backends.memory import Estimate
from specbench.errors import UnusableModelError, UsageError
from specbench.settings import of_engine
from specbench.spec import RunSpec
from specbench.wording import clean

SCRIPT = Path(__file__).with_name("vllm_child.py")
OPENING, DECODING = 1800.0, 1800.0  # timeouts in seconds of opening and decoding
PAGE = 128  # tokens by which a CPU cache grows
LEAST = 256 << 20  # bytes of a cache
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # half the start time, and no polling process
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")  # these start more workers
QUIET = {
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "KMP_BLOCKTIME": "1",  # milliseconds that its threads poll after a decode, while another engine runs
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise it leaves out a core and pins every process to the same ones
}  # fmt: skip
INSTEAD = "use --backend native"
BUG = (
    "vLLM on a CPU samples wrongly with a draft at temperatures above 0 in version 0.32 (vLLM issue 55005), so that "
    "acceptance and speed are not those of a lossless method: see the z-test of specbench verify --backend vllm"
)


@dataclass(frozen=True)
class Vllm:
    """vLLM by the Python in which it is installed."""

    python: Path
    script: Path = SCRIPT
    patience: tuple[float, float] = (OPENING, DECODING)
    name: ClassVar[str] = VLLM
    about: ClassVar[str] = (
        "its offline engine, a process per arm; compiled as by default, or with --tier eager as it comes"
    )

    def start(self, spec: RunSpec, pair: CheckedPair, places: int) -> Start:
        refuse_settings(VLLM, spec)
        if "trust_remote_code" in of_engine(spec.engine_option, VLLM):
            raise UsageError(
                "--backend vllm: --engine-option vllm.trust_remote_code: --trust-remote-code alone decides whether "
                f"code of a checkpoint runs: leave it out, or {INSTEAD}"
            )
        refuse_files("target", pair)
        speculative = speculation(spec, pair)
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
        llm = located(start["llm"], pair)
        process = Process(self.name, [str(self.python), "-I", str(self.script)], variables(self.python, llm))
        process.patience = self.patience[1]
        try:
            refuse_elsewhere(process.ask({"op": "open", "llm": llm}, self.patience[0]), start)
        except BaseException:  # also on an interrupt: it would continue opening
            process.close()
            raise
        return process

    def tier(self, spec: RunSpec) -> str:
        return "eager" if spec.tier == "eager" else "compile"  # vLLM's default

    def notes(self, spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
        found = installed(self.python.parent.parent)
        version = f"{found.name} {found.version}" if found else "an unknown version"
        return (version, *notes_on(spec, pair, speculation(spec, pair)))


class Process(Child):
    patience = DECODING

    def decode(
        self, spec: RunSpec, prompts: Prompts, seeds: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[Finished], float]:
        draws = [draw(spec, seed, ends) for seed in seeds]
        message = {"op": "decode", "prompts": [list(prompt) for prompt in prompts], "draws": draws}
        return decoded(self.ask(message, self.patience), len(draws))


def refuse_elsewhere(said: Mapping[str, Any], start: Start) -> None:
    """UnusableModelError if it computes on another device than the one recorded with its numbers."""
    if (found := said.get("device")) != start["device"]:
        raise UnusableModelError(
            f"{VLLM}: this build computes on {clean(found)}, and the pair is on {start['device']}: choose --device, or "
            f"install another build (`specbench backend install {VLLM} --package …`)"
        )


def decoded(said: Mapping[str, Any], prompts: int) -> tuple[list[Finished], float]:
    """The results of a process for this many prompts. UnusableModelError for impossible ones."""
    try:
        seconds = float(said["seconds"])
        found = [finished(one, seconds) for one in said["found"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableModelError(f"{VLLM}: its process reported no tokens ({type(error).__name__} {error})") from error
    if len(found) != prompts:
        raise UnusableModelError(f"{VLLM}: its process reported {len(found)} prompts, and {prompts} were requested")
    return found, seconds


def finished(said: Mapping[str, Any], seconds: float) -> Finished:
    counts = (tuple(map(int, said[name])) for name in ("drafted", "accepted"))
    return Finished(tuple(map(int, said["tokens"])), float(said["first"]), seconds, *counts)


def draw(spec: RunSpec, seed: int, ends: Sequence[int]) -> dict[str, Any]:
    """The sampling parameters of a spec as arguments of SamplingParams."""
    sampling = {"temperature": spec.temperature, "top_p": spec.top_p or 1.0, "top_k": spec.top_k or 0}
    length = {"max_tokens": spec.max_new_tokens, "ignore_eos": spec.ignore_eos, "stop_token_ids": list(ends)}
    return {**sampling, **length, "seed": seed % (1 << 31), "detokenize": False}


def cache(spec: RunSpec, pair: CheckedPair, places: int) -> int:
    """Bytes of the cache for all rows, the draft's included: the default would take most of a device."""
    rows, length = spec.batch + 1, places + 2 * PAGE
    return max(LEAST, 2 * sum(net.cache(length, rows) for net in Estimate(pair).networks.values()))


def variables(python: Path, llm: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables of its processes: as many threads as ours, and Intel's OpenMP if installed."""
    alone = {} if any(llm.get(size, 1) != 1 for size in PARALLEL) else IN_PROCESS
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    library = python.parent.parent / "lib" / "libiomp5.so"
    return {**alone, **QUIET, **threads, **({"LD_PRELOAD": str(library)} if library.exists() else {})}


def speculation(spec: RunSpec, pair: CheckedPair) -> Mapping[str, Any] | None:
    """`speculative_config` for a method; None for the baseline. UsageError, naming the native backend, for others."""
    parts = drafting(VLLM, spec)
    if parts is None:
        return None
    common, fields = {"num_speculative_tokens": parts.k(spec)}, parts.fields
    if parts.drafter == "PromptLookup":
        most, least = fields.get("most", 3), fields.get("least", 1)
        return {**common, "method": "ngram", "prompt_lookup_max": most, "prompt_lookup_min": least}
    if parts.drafter == "Suffix":
        return {
            **common,
            "method": "suffix",
            "suffix_decoding_max_tree_depth": fields.get("most", 64),
            "suffix_decoding_max_spec_factor": fields.get("factor", 1.0),
            "suffix_decoding_min_token_prob": fields.get("least", 0.1),
            # without carried answers it uses only the prompt and the answer, as ours does
            "suffix_decoding_max_cached_requests": fields.get("texts", 1000) if fields.get("carry") else 0,
        }
    return {**common, **judged(spec, parts.rule, pair), **model(str(fields["model"]), pair)}


def judged(spec: RunSpec, rule: str, pair: CheckedPair) -> dict[str, Any]:
    """How drafts are drawn and judged: above temperature 0 from the draft's distribution, which is not its default."""
    if rule == "Block" and pair.device.type == "cpu":
        raise UsageError(
            f"--backend vllm: --method {spec.method}: on a CPU it accepts block verification, but still judges token "
            f"by token: choose chain, or {INSTEAD}"
        )
    found: dict[str, Any] = {"rejection_sample_method": "block"} if rule == "Block" else {}
    return found | ({"draft_sample_method": "probabilistic"} if spec.temperature > 0 else {})


def model(name: str, pair: CheckedPair) -> dict[str, Any]:
    """The drafting model: a network of the target's tokens, or an EAGLE-3 head in the speculators format."""
    if name in pair.kept or name in pair.foreign:
        why = "is layers of another model" if name in pair.kept else "has another tokenizer"
        raise UsageError(f"--backend vllm: the {name} {why}, and it drafts with networks of one vocabulary: {INSTEAD}")
    refuse_files(name, pair)
    role = pair.roles[name]
    if role.head is None:
        return {"method": "draft_model", "model": name}
    head = role.head.head
    if head.kind != "eagle3" or head.format != "speculators":
        raise UsageError(
            f"--backend vllm: the {name} is {head.words}, and the only trained heads for it are EAGLE-3 in the "
            f"speculators format: {INSTEAD}"
        )
    return {"method": "eagle3", "model": name}


def refuse_files(name: str, pair: CheckedPair) -> None:
    """UsageError for a checkpoint that it cannot read."""
    role = pair.roles[name]
    if role.checkpoint.file:
        raise UsageError(
            f"--backend vllm: {role.checkpoint.name} is a GGUF file: name the folder or hub id of the model"
        )
    refuse_ours("vllm", role)


def located(llm: Mapping[str, Any], pair: CheckedPair) -> dict[str, Any]:
    """The arguments of an engine with folders in place of model names."""
    found = {**llm, "model": folder_of(str(llm["model"]), pair)}
    if (drafting := llm.get("speculative_config")) and "model" in drafting:
        found["speculative_config"] = {**drafting, "model": folder_of(str(drafting["model"]), pair)}
    return found


def folder_of(name: str, pair: CheckedPair) -> str:
    """The folder of a role's checkpoint, with its weights."""
    role = pair.roles[name]
    return str(files_of(role)[0] if role.head is None else role.head.head.folder)


def notes_on(spec: RunSpec, pair: CheckedPair, config: Mapping[str, Any] | None) -> Sequence[str]:
    """Differences of vLLM that change numbers."""
    if config is None:
        return []
    found = []
    if config["method"] in ("ngram", "suffix"):
        found.append("steps without a draft are counted, but not where they were")
    if config["method"] == "draft_model" and spec.temperature > 0:
        found.append(
            "drafts are sampled from the draft's distribution (draft_sample_method probabilistic; its default is "
            "greedy)"
        )
    if config["method"] == "eagle3" and spec.temperature > 0:
        found.append("heads sample their drafts, too (draft_sample_method probabilistic)")
    if spec.temperature > 0 and pair.device.type == "cpu":
        found.append(BUG)
    return found
