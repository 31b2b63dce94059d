"""`specbench run`: baseline and one method over some data sets, measured side by side."""

from specbench.cli import options as o
from specbench.cli.launch import launch


def run(
    target: o.Target = None,
    draft: o.Draft = None,
    model: o.Models = None,
    target_revision: o.TargetRevision = None,
    draft_revision: o.DraftRevision = None,
    dtype: o.Dtype = None,
    draft_dtype: o.DraftDtype = None,
    device: o.Device = None,
    method: o.Method = None,
    k: o.K = None,
    schedule: o.Schedule = None,
    confidence: o.Confidence = None,
    acceptance: o.Acceptance = None,
    tier: o.Tier = None,
    batch: o.Batch = None,
    dataset: o.Dataset = None,
    column: o.Column = None,
    template: o.Template = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    eta: o.Eta = None,
    ignore_eos: o.IgnoreEos = None,
    seed: o.Seed = None,
    warmup: o.Warmup = None,
    repeat: o.Repeat = None,
    until_ci: o.UntilCi = None,
    resume: o.Resume = None,
    config: o.Config = None,
    output_dir: o.OutputDir = None,
    format: o.Format = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> None:
    """Measure baseline and speculative decoding of a pair over prompts.

    Without any option: the shipped pair on the shipped prompts, offline, on whatever device there is.
    """
    launch(locals(), axes=("dataset", "batch"))
