"""The body of `specbench backend install`. Loads no torch."""

from collections.abc import Callable
from pathlib import Path

from specbench.backends.apart.install import Say
from specbench.backends.llamacpp import install as llamacpp
from specbench.backends.vllm import install as vllm
from specbench.errors import UsageError
from specbench.wording import near

INSTALLS: dict[str, Callable[[str | None, bool, Say], Path]] = {
    vllm.NAME: vllm.install_vllm,
    llamacpp.NAME: llamacpp.install_llama_cpp,
}


def install(engine: str, package: str | None, overwrite: bool, say: Say) -> Path:
    """Install an engine; the folder that it is in. UsageError for one that is not installed this way."""
    if engine not in INSTALLS:
        raise UsageError(f"{engine[:60]!r} is not installed here{near(engine, INSTALLS)}: use {', '.join(INSTALLS)}")
    return INSTALLS[engine](package, overwrite, say)
