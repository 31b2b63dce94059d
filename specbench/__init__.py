"""specbench: does speculative decoding pay for this pair, this method and this K, on this hardware?

    import specbench

    result = specbench.run(target="llama-7b", draft="llama-68m", k=4)
    print(result)

Names listed here are imported on first use: importing specbench loads nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench.library.predicting import predict
    from specbench.library.result import Progress, Result, load_run
    from specbench.library.running import resume, run

__version__ = "0.1.0"
__all__ = ["Progress", "Result", "load_run", "predict", "resume", "run"]
WHERE = {
    **dict.fromkeys(("run", "resume"), "running"),
    "predict": "predicting",
    **dict.fromkeys(("Progress", "Result", "load_run"), "result"),
}


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.library.{WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
