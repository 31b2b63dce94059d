"""Where engines are installed that `specbench backend install` fetches.

Not among the caches: those are bounded and deleted without asking, and an engine takes gigabytes and minutes.
"""

import os
from pathlib import Path

from platformdirs import user_data_path

NAME = "SPECBENCH_ENGINES"  # in the environment: another folder for them


def place(engine: str) -> Path:
    """The folder of an engine; it need not exist."""
    given = os.environ.get(NAME)
    folder = Path(given).expanduser() if given else user_data_path("specbench", appauthor=False) / "engines"
    return folder / engine
