"""Top-p with and without sorting the vocabulary, and transformers' own, by the size of the vocabulary and rows.

    python -m tests.benchmarks.top_p [--device cuda] [--vocabulary 4096,32000,128256] [--rows 1,5,40] [--p 0.9]
        [--repeat 30]

All three in turn, over and over, on the same scores, so that whatever else the machine does meets them alike; the ratio
is the median over the turns. That the two ways of ours keep the same tokens is asserted on the way.
"""

import statistics
from collections.abc import Iterator

import torch
from transformers import TopPLogitsWarper

from specbench.models.network.sampling import by_digits, by_sort
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet


def rows(bench: Bench) -> Iterator[harness.Row]:
    args = bench.args
    generator, theirs = torch.Generator(bench.device).manual_seed(args.seed), TopPLogitsWarper(args.p)
    for width in harness.numbers(args.vocabulary):
        for count in harness.numbers(args.rows):
            scores = 3 * torch.randn((count, width), generator=generator, device=bench.device)
            assert torch.equal(by_digits(scores, args.p), by_sort(scores, args.p))
            calls = {
                "transformers": lambda scores=scores: theirs(torch.empty(0), scores),
                "sort": lambda scores=scores: by_sort(scores, args.p),
                "digits": lambda scores=scores: by_digits(scores, args.p),
            }
            timed = {name: harness.seconds_of(call, bench.device) for name, call in calls.items()}
            found = harness.in_turns(timed, args.repeat, args.seed)
            ratio = statistics.median(a / b for a, b in zip(found["sort"], found["digits"], strict=True))
            medians = {f"{name}, ms": 1000 * statistics.median(times) for name, times in found.items()}
            yield {"vocabulary": width, "rows": count, **medians, "sort ÷ digits": ratio}


@torch.no_grad()
def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--vocabulary", default="4096,32000,128256", help="(4096,32000,128256)")
    options.add_argument("--rows", default="1,5,40", help="(1,5,40)")
    options.add_argument("--p", type=float, default=0.9, help="(0.9)")
    options.add_argument("--repeat", type=int, default=30, help="(30)")
    bench = harness.begin("top_p", "Top-p with and without a sort", options.parse_args())
    bench.publish([Sheet(f"p = {bench.args.p}, float32", list(rows(bench)))])


if __name__ == "__main__":
    main()
