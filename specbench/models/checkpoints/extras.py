"""The optional packages that some checkpoints need: whether they are there, and how they are installed.

Knows the names of packages and of our extras; imports none of them.
"""

from importlib.util import find_spec

from specbench.errors import UnusableModelError

DISTRIBUTION = "specbench-decoding"

# Our extra → the modules that it brings, as far as they are asked for here.
EXTRAS: dict[str, tuple[str, ...]] = {
    "gguf": ("gguf",),
    "peft": ("peft",),
    "quant": ("torchao",),
    "compressed": ("compressed_tensors",),
    "bnb": ("bitsandbytes",),
    "gptq": ("gptqmodel", "optimum"),
}


def require(extra: str, what: str) -> None:
    """UnusableModelError, naming the extra, unless its packages are installed. `what` needs them."""
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        names = " and ".join(module.replace("_", "-") for module in missing)
        raise UnusableModelError(f"{what} needs {names}: {install(extra)}")


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
