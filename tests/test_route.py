"""From `main` to the accept step in few frames and files, as many as docs/route.md says."""

import re
import sys
from pathlib import Path

import pytest

from specbench.decoding.verifiers.rejection import Rejection
from tests.support.frontdoor import Command

REPO = Path(__file__).parents[1]
COMMAND = "run --k 4 --dataset code --limit 1 --max-new-tokens 4 --warmup 0 --tier eager --quiet"
MOST_FRAMES, MOST_FILES = 18, 10


@pytest.fixture
def route(command: Command, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The package's own frames from `main` to `judge` when a draft is judged first, as `file:function`."""
    package, judge, seen = REPO / "specbench", Rejection.judge, list[str]()

    def judged(*arguments: object) -> object:
        frame = sys._getframe(1)
        stack = ["decoding/verifiers/rejection.py:judge"]
        while frame is not None and not seen:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(package):
                stack.append(f"{file.relative_to(package)}:{frame.f_code.co_name}")
            frame = frame.f_back  # type: ignore[assignment]
        seen.extend([] if seen else reversed(stack))
        return judge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Rejection, "judge", judged)
    assert command(*COMMAND.split()).code == 0
    return seen


def test_few_frames_lead_from_the_command_line_to_the_accept_step(route: list[str]) -> None:
    files = {frame.partition(":")[0] for frame in route}
    assert route[0] == "cli/app.py:main"
    assert route[-1] == "decoding/verifiers/rejection.py:judge"
    assert len(route) <= MOST_FRAMES
    assert len(files) <= MOST_FILES
    said = re.search(r"(\d+) frames in (\d+) files", (REPO / "docs/route.md").read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (len(route), len(files))
