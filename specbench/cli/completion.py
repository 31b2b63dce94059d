"""What a shell completes after an option or in the place of an argument: names that specbench knows, and its runs.

Knows where names are listed; must not know commands. Loads nothing heavy, for a shell waits.
"""

from collections.abc import Callable, Iterable
from typing import Any, get_args

Names = Callable[[], Iterable[str]]


def methods() -> Iterable[str]:
    from specbench.decoding.method_files import methods
    from specbench.spec import CHOOSING

    return [*methods(), CHOOSING]


def models() -> Iterable[str]:
    from specbench.models.checkpoints.pairs import aliases

    return aliases()


def data_sets() -> Iterable[str]:
    from specbench.data.readers import READERS
    from specbench.data.sources import HUB, LONG, SHIPPED, added

    return [*SHIPPED, *HUB, *added(), *(f"{kind}:" for kind in (*READERS, *LONG))]


def backends() -> Iterable[str]:
    from specbench import plugins

    return ["native", "transformers", "vllm", "llama.cpp", "openai", *plugins.names(plugins.BACKENDS, ())]


def presets() -> Iterable[str]:
    from specbench.presets import presets

    return presets()


def grids() -> Iterable[str]:
    from specbench.shipped import CONFIGS

    return sorted(path.stem for path in (CONFIGS / "grids").glob("*.yaml"))


def runs() -> Iterable[str]:
    from specbench.results.named_runs import names_of_runs

    return names_of_runs()


def formats() -> Iterable[str]:
    from specbench.show.records import Format

    return get_args(Format)


KNOWN: dict[str, Names] = {
    "method": methods, "target": models, "draft": models, "dataset": data_sets, "preset": presets, "format": formats,
    "backend": backends, "resume": runs,
}  # fmt: skip


def of(name: str, words: Iterable[str] = ()) -> dict[str, Any]:
    """How Typer completes an option: from the names of its kind, or else from `words`; nothing where there are none."""
    known = KNOWN.get(name, (lambda: words) if words else None)
    return {"autocompletion": beginning(known)} if known else {}


def beginning(names: Names) -> Callable[[str], list[str]]:
    """Those of some names that begin like what has been typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
