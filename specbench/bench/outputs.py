"""Whether what a cell put out is what it may put out: its greedy texts beside the baseline's, its rule when sampled.

Knows specs, samples and method files; the comparison of two texts is that of `lossless`.
"""

from collections.abc import Sequence

from specbench.bench import lossless
from specbench.bench.prompts import PromptSet
from specbench.bench.samples import Sample
from specbench.decoding.method_files import read_method
from specbench.spec import RunSpec


def compare(
    spec: RunSpec, prompts: PromptSet, samples: Sequence[Sample], scores: lossless.Scores
) -> lossless.Losslessness:
    """The losslessness of a greedy cell. Sampled output differs by chance, that of synthetic acceptance on purpose."""
    if spec.temperature > 0 or spec.acceptance is not None:
        lossy = spec.acceptance is None and not read_method(spec.method)["lossless"]
        return lossless.Losslessness("lossy" if lossy else "not compared")
    ids = {prompt.id: prompt.ids for prompt in prompts.prompts}
    outputs = [(ids[s.prompt], s.baseline.tokens, s.method.tokens) for s in samples if s.repeat == 0]
    widest = max((r.width for s in samples for r in s.method.rounds), default=0)  # all nodes of a tree are one pass
    return lossless.compare(outputs, scores, max(widest, spec.k) + 1)
