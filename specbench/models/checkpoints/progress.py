"""Downloads counted in bytes, by the bars that huggingface_hub would draw.

Knows its bars (huggingface_hub 1 to 2.4, `_snapshot_download`); must not know what is fetched, or who is told.
"""

from typing import Any

from specbench.models.checkpoints.reading import Watch


def bars(watch: Watch) -> type[Any]:
    """A class of bars that are never drawn, and tell `watch` how many bytes have come.

    The library makes one for the bytes on disk, one for those on the wire, which are fewer, and one that counts files.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Counting(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)  # type: ignore[no-untyped-call]
            words = str(settings.get("desc", ""))
            self.counts = settings.get("unit") == "B" and not words.startswith("Downloading bytes")
            self.came = 0

        def update(self, n: float | None = 1) -> None:
            if self.counts:
                self.came += int(n or 0)
                watch("fetching", self.came, int(self.total or 0))

    return Counting
