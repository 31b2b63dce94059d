"""The engine that measures a pair, ours or another package's: the only module that knows all engines by name."""

from collections.abc import Callable, Sequence

from specbench import plugins
from specbench.backends import native
from specbench.backends.base import Backend
from specbench.backends.engines import arms, external, server, started, transformers
from specbench.backends.engines.install import LLAMA_CPP, VLLM, llama_server, vllm_python
from specbench.backends.engines.llamacpp import LlamaCpp
from specbench.backends.engines.vllm import Vllm
from specbench.errors import UsageError
from specbench.settings import engines
from specbench.spec import RunSpec
from specbench.wording import near

BACKENDS: dict[str, Callable[[Sequence[RunSpec]], Backend]] = {
    native.NAME: native.open_pair,
    transformers.NAME: transformers.open_pair,
    server.NAME: server.open_pair,
    VLLM: lambda specs: external.opened(Vllm(vllm_python()), specs),
    LLAMA_CPP: lambda specs: external.opened(LlamaCpp(llama_server()), specs),
    **dict.fromkeys(arms.ENGINES, started.open_pair),
}
TAKE_OPTIONS = (VLLM, LLAMA_CPP)
REQUESTS = ("arrivals", "slo", "endpoint", "request_field")  # settings of requests to servers
WORDS = ("server_args", "spec_config", "spec_args")  # of servers that are started here


def backend_for(specs: Sequence[RunSpec]) -> Backend:
    """The backend of one pair, checked without weights. Raises UsageError or UnusableModelError."""
    for engine in (engine for spec in specs for engine in engines(spec.engine_option)):
        if engine not in TAKE_OPTIONS:
            names = " or ".join(TAKE_OPTIONS)
            raise UsageError(
                f"--engine-option: {engine[:60]!r} takes no engine options{near(engine, TAKE_OPTIONS)}: name {names}"
            )
    for spec in specs:
        refuse_alien(spec, REQUESTS, arms.SERVED, f"--backend {server.NAME} with --url")
        refuse_alien(spec, WORDS, tuple(arms.ENGINES), f"--backend {' or '.join(arms.ENGINES)}")
    name = specs[0].backend or native.NAME
    if name in BACKENDS:
        return BACKENDS[name](specs)
    added = plugins.names(plugins.BACKENDS, BACKENDS)
    if name not in added:
        known = [*BACKENDS, *added]
        raise UsageError(f"unknown --backend {name[:60]!r}{near(name, known)}: choose one of {', '.join(known)}")
    found: Backend = plugins.load(plugins.BACKENDS, name)(specs)
    return found


def refuse_alien(spec: RunSpec, names: Sequence[str], backends: Sequence[str], instead: str) -> None:
    """UsageError for a setting of servers if the engine of a spec has none."""
    given = next((name for name in names if getattr(spec, name) is not None), None)
    if given and spec.backend not in backends:
        option, engine = f"--{given.replace('_', '-')}", (spec.backend or native.NAME)[:60]
        raise UsageError(
            f"{option}: requests need a server, and --backend {engine} has none: use {instead}, or leave it out"
        )
