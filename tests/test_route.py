"""From `main` to the accept step in few frames and files, as many as docs/route.md says."""

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[1]
COMMAND = "run --k 4 --dataset code --limit 1 --max-new-tokens 4 --warmup 0 --tier eager --quiet --output-dir"
MOST_FRAMES, MOST_FILES = 18, 10


def route(folder: Path) -> list[str]:
    """The package's own frames from `main` to `judge` in a fresh run, as `file:function`."""
    command = [sys.executable, "-m", "tests.test_route", *COMMAND.split(), str(folder)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    return [line.removeprefix("frame ") for line in done.stderr.splitlines() if line.startswith("frame ")]


def test_few_frames_lead_from_the_command_line_to_the_accept_step(tmp_path: Path) -> None:
    frames = route(tmp_path)
    files = {frame.partition(":")[0] for frame in frames}
    assert frames[0] == "cli/app.py:main"
    assert frames[-1] == "decoding/verifiers/rejection.py:judge"
    assert len(frames) <= MOST_FRAMES
    assert len(files) <= MOST_FILES
    said = re.search(r"(\d+) frames in (\d+) files", (REPO / "docs/route.md").read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (len(frames), len(files))


def watched() -> None:
    """Run the command of `sys.argv` and print the stack when a draft is judged first."""
    from specbench.cli.app import main
    from specbench.decoding.verifiers.rejection import Rejection

    package, judge, seen = REPO / "specbench", Rejection.judge, list[str]()

    def judged(*arguments: object) -> object:
        frame = sys._getframe(1)
        stack = ["decoding/verifiers/rejection.py:judge"]
        while frame is not None and not seen:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(package):
                stack.append(f"{file.relative_to(package)}:{frame.f_code.co_name}")
            frame = frame.f_back
        if not seen:
            seen.extend(reversed(stack))
            print(*(f"frame {one}" for one in seen), sep="\n", file=sys.stderr, flush=True)
        return judge(*arguments)

    Rejection.judge = judged
    main()


if __name__ == "__main__":
    watched()
