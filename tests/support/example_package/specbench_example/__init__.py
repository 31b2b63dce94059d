"""What a package adds to specbench. It loads no torch, so that listing methods stays quick."""

from collections.abc import Iterator, Mapping
from pathlib import Path

METHOD = Path(__file__).with_name("repeat-last.yaml")


def counting(text: str) -> Iterator[Mapping[str, object]]:
    """Prompts of so many numbers, after the colon of --dataset counting:N."""
    for length in range(1, int(text or 3) + 1):
        yield {"prompt": " ".join(f"w{number}" for number in range(1, length + 1)), "category": "numbers"}
