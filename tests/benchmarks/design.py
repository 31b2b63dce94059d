"""Drafts of equal parameters by their depth: latency, acceptance after equal training, and measured tokens per second.

    python -m tests.benchmarks.design [--folder results/design] [--save FILE] [options of specbench design-draft]

It is `specbench design-draft` with its tables put down as Markdown. Killed and called again with the same options it
goes on. Two cores take about 25 minutes.
"""

import json
import sysconfig
from pathlib import Path

from specbench.cli.app import app
from specbench.jobs.training.design import DOCUMENT
from specbench.show.documents import line, title
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("results/design"), help="(results/design)")
    args, more = parser.parse_known_args()
    bench = harness.begin("design", "Drafts of equal parameters by depth", args)
    app(["design-draft", "--output", str(args.folder), "--seed", str(args.seed), *more], standalone_mode=False)
    found = json.loads((args.folder / DOCUMENT).read_text())
    notes = [text.replace(sysconfig.get_path("stdlib"), "STDLIB") for text in found["findings"]]
    shapes = Sheet(title(found["shapes"]), [line(row) for row in found["shapes"]], notes)
    rungs = [{"tokens learned": rung["tokens"], "best first": ", ".join(rung["order"])} for rung in found["rungs"]]
    bench.publish([shapes, Sheet("Successive halving", rungs)], found["shapes"])


if __name__ == "__main__":
    main()
