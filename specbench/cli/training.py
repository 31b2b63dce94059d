"""The commands that train (`train draft`, `head`, `boost`, `design-draft`), and the recipes that their options make."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from specbench.cli.options import DATA as PROMPTS
from specbench.cli.options import (  # fmt: skip
    MEASURE,
    OWN,
    SAMPLING,
    SEARCH,
    STYLE,
    Given,
    Option,
    of_setting,
    options,
    setting,
    settings_in,
)
from specbench.errors import UsageError
from specbench.measure.parsing import parse_counts, parse_size
from specbench.settings import declared, group
from specbench.spec import RunSpec
from specbench.training.recipe import HELP, Recipe
from specbench.wording import redact

if TYPE_CHECKING:
    from specbench.jobs.training.data import Source
    from specbench.jobs.training.start import Beginning, HeadStart, MtpStart, PardStart
    from specbench.jobs.training.train import Draft

BEGIN, DATA, TRAINING, OUTPUT = "Start", "Data", "Training", "Output"
TARGET = ("target", "target_revision", "dtype", "attn_implementation", "device", "trust_remote_code")
USUAL = {"max_new_tokens": 128, "batch": 16}
OWN_NAMES = {"warmup", "draft_vocabulary"}  # training options that share a name with a setting of the target

START = (
    Option("begin", str, BEGIN, "fresh, pruned (layers and width of the target), or a checkpoint. Default: fresh.",
           ("--from",)),
    Option("layers", int, BEGIN, "Layers of the draft. Default: 2.", low=1),
    Option("hidden", int, BEGIN, "Hidden size of the draft. Default: half the target's.", low=1),
    Option("intermediate", int, BEGIN, "MLP width of the draft.", low=1),
    Option("heads", int, BEGIN, "Query heads of the draft.", low=1),
    Option("kv_heads", int, BEGIN, "Key/value heads of the draft.", low=1),
    Option("parameters", str, BEGIN, "Maximum number of parameters, such as 15M: sets the width."),
    Option("keep", Literal["even", "first", "importance"], BEGIN, "Which layers --from pruned keeps: evenly spaced, "
           "the first, or the most important. Default: even."),
    Option("draft_vocabulary", int, BEGIN, "Vocabulary of its head: this many of the target's most frequent tokens. "
           "Default: all.", low=1),
)  # fmt: skip
TEXT = (
    Option("data", list[str], DATA, f"{HELP} Default: code and articles."),
    Option("generate", bool, DATA, "Learn the target's own answers to the prompts of --data, or the text of --data "
           "itself. Default: generate.", ("--generate/--as-it-is",)),
    Option("samples_per_prompt", int, DATA, "Answers to every prompt. Default: 1.", low=1),
    Option("answer_temperature", float, DATA, "Temperature of the answers: above that of decoding, the answers to a "
           "prompt differ. Default: --temperature.", low=0),
    Option("cache", Path, DATA, "Folder for answers and tokens, which other trainings can share. Default: in "
        "--output."),
    Option("keep_states", bool, DATA, "Keep the target's last hidden states in --cache, so that the target reads every "
           "text once. Default: if text is learned more than once.", ("--keep-states/--no-keep-states",)),
)  # fmt: skip
READING = ("column", "template", "chat", "limit", "max_new_tokens", "sampling", "ignore_eos", "batch", "tier")
RECIPE: tuple[str | Option, ...] = (
    *(of_setting(one) for one in declared(Recipe).values() if one.setting.group == "training"),
    setting("k", "Lookahead at which drafts are judged.", 4),
    "seed",
)
KEPT: tuple[str | Option, ...] = (
    Option("hours", float, TRAINING, "Training time: sets --tokens from the speed of this machine.", low=0),
    Option("checkpoint_minutes", float, TRAINING, "Minutes between two checkpoints. Default: 5.", low=0),
    Option("license", str, OUTPUT, "License in the model card. Default: the target's, where it is known."),
    replace(OWN["output"], absent=..., help="The folder of the draft; an interrupted training continues there."),
)
HEAD_START = (
    Option("kind", Literal["eagle3", "medusa", "mtp", "pard"], BEGIN, "eagle3 (one layer on three hidden states of the "
           "target), medusa (one small head for each drafted token), mtp (one more layer of the target), or pard (a "
           "draft that predicts several tokens from mask tokens)."),
    Option("begin", str, BEGIN, "pard: the draft to start from, a checkpoint. mtp: a module to start from, the "
           "target's own or a folder. Default: fresh.", ("--from",)),
    Option("steps", int, BEGIN, "Number of drafted tokens to train for. eagle3, mtp: how often the head continues from "
           "its own states; medusa: its heads; pard: 1 + its masks. Default: 4.", low=1, high=16),
    Option("intermediate", int, BEGIN, "eagle3: the width of its MLP. Default: the target's.", low=1),
    Option("draft_vocabulary", int, BEGIN, "Vocabulary of the draft: this many of the target's most frequent tokens. "
           "Default: all.", low=1),
)  # fmt: skip
OF_NETWORKS = ("keep_states", "samples")  # not used for heads
HEAD: tuple[str | Option, ...] = tuple(
    one
    for one in (*HEAD_START, *TARGET, *TEXT, *READING, *RECIPE, *KEPT, STYLE, "quiet")
    if isinstance(one, str) or one.name not in OF_NETWORKS
)
ALL: tuple[str | Option, ...] = (*TARGET, *TEXT, *READING, *START, *RECIPE, *KEPT, STYLE, "quiet")


@options(*ALL, usual=USUAL)
def draft(given: Given) -> None:
    """Train a draft on the distributions of a target, and judge it on held-out text.

    Its folder works with --draft after the first evaluation, and always holds the best draft so far.

    Examples:

    specbench train draft --target demo --output drafts/mine
    """
    from specbench.jobs.training import train as job

    job.start(draft_of(given), given["format"], given["quiet"])


@options(*HEAD, usual=USUAL)
def head(given: Given) -> None:
    """Train a head that drafts for a target, from its hidden states or with mask tokens, and judge it on held-out text.

    Use its folder with --draft; vLLM loads an EAGLE-3 head, too.

    Examples:

    specbench train head --kind eagle3 --target demo --draft-vocabulary 2048 --output heads/eagle3

    specbench train head --kind medusa --target demo --steps 4 --hours 0.5 --output heads/medusa

    specbench train head --kind mtp --target demo --output heads/mtp

    specbench train head --kind pard --target demo --from demo-draft --output heads/pard
    """
    from specbench.jobs.training import train as job

    wanted = training_of({**given, "keep_states": False}, head_of(given))
    job.start(wanted, given["format"], given["quiet"])


@options(..., *ALL, usual=USUAL)
def boost(
    given: Given,
    drafts: Annotated[int, typer.Option(min=2, max=16, help="Number of drafts.", rich_help_panel=TRAINING)] = 3,
    alike: Annotated[
        bool, typer.Option("--alike", help="Fit all of them to all text, as a control.", rich_help_panel=TRAINING)
    ] = False,
) -> None:
    """Train drafts that complement each other: each learns where the earlier ones miss the target (SpecInfer).

    They draft side by side in the method boosted-merge. Folder 1, 2, … of --output is one draft each.

    Examples:

    specbench train boost --target demo --drafts 3 --output drafts/boosted
    """
    from specbench.jobs.training import train as job

    job.boost(replace(draft_of(given), boosted=not alike), drafts, given["format"], given["quiet"])


# Small networks learn from few tokens: many small steps at a high rate, with little time for evaluation.
BRIEF: Given = {"tokens": 400_000, "rows": 4, "length": 128, "rate": 3e-3, "evaluations": 2}
DESIGN_USUAL: Given = {"dataset": "code", "limit": 10, "max_new_tokens": 64, **BRIEF}
MOST_SHAPES, LEAST_TOKENS = 256, 1000
SHAPES = (
    Option("budget", str, SEARCH, "Maximum parameters of a draft: 1M,2M,4M.", absent="1M,2M,4M"),
    Option("depths", str, SEARCH, "Layers of a draft: 1,2,4,8.", absent="1,2,4,8"),
    Option("count", Literal["all", "layers"], SEARCH, "What --budget counts: all parameters, embedding included, or "
           "only those in layers, for targets with a large vocabulary.",
           absent="all"),
    Option("k_max", int, SEARCH, "Longest lookahead considered. Default: 8.", absent=8, low=1, high=64),
    Option("repeat", int, MEASURE, "How often every shape is timed. Default: 15.", absent=15, low=1),
    Option("rungs", int, SEARCH, "Rungs of successive halving, each with twice the tokens. Default: 3.", absent=3,
           low=1, high=8),
)  # fmt: skip


@options(
    *("target", "target_revision", "dtype", "device", "tier"),
    *SHAPES,
    replace(TEXT[0], help="What is learned, as `specbench train draft` takes it. Default: the modules of the Python "
            "that runs this, as text."),
    *TEXT[1:],
    *(of_setting(one, usual=DESIGN_USUAL.get(one.name)) for one in group("training", Recipe)),
    setting("dataset", "What the trained drafts are measured on: a data set as in `specbench run`.", "code"),
    *PROMPTS[1:],
    *SAMPLING,
    "seed",
    replace(OWN["output"], help="Folder of the design; the same command continues it. Default: "
            "results/design-TARGET."),
    STYLE,
    "quiet",
    usual=DESIGN_USUAL,
)  # fmt: skip
def design_draft(given: Given) -> None:
    """Find the shape of draft to train: time shapes of equal parameters, train the promising ones, measure the best.

    Every budget has a shape of every depth. Latencies and drafts are saved in the folder immediately.

    Examples:

    specbench design-draft --budget 1M,2M --depths 1,2,4
    """
    budgets = sorted({parse_size(text, "--budget") for text in given["budget"].split(",")})
    depths = parse_counts(given["depths"], "--depths", "1,2,4,8")
    if len(budgets) * len(depths) > MOST_SHAPES:
        asked_for = f"{len(budgets)} budgets and {len(depths)} depths"
        raise UsageError(f"{asked_for} are more than {MOST_SHAPES} shapes: ask for fewer")
    recipe = recipe_of(given)
    if recipe.tokens < LEAST_TOKENS:
        raise UsageError(f"--tokens {recipe.tokens}: too few to learn from; give {LEAST_TOKENS} or more")
    import sysconfig

    from rich.console import Console

    from specbench.jobs.training.design import Design

    if not given.get("data"):  # text available on every machine: the modules of the standard library
        given = {**given, "data": [f"text:{sysconfig.get_path('stdlib')}/*.py"], "generate": False}
    settings = {name: value for name, value in target_settings(given).items() if name != "repeat"}
    names = ("count", "k_max", "repeat", "rungs", "output")
    search: dict[str, Any] = {name: given.get(name) for name in names}
    err = Console(stderr=True, quiet=given["quiet"])
    design = Design(settings, budgets, depths, source=source_of(given), recipe=recipe, err=err, **search)
    design.start(given["format"])


def recipe_of(given: Given) -> Recipe:
    """Build the recipe from the given options. UsageError if a value is invalid."""
    found = {name: given[name] for name in Recipe.model_fields if name in given}
    if "losses" in found:
        found["losses"] = tuple(part.strip() for part in str(found["losses"]).split(","))
    try:
        return Recipe(**found)
    except ValidationError as error:
        first = error.errors()[0]
        name = declared(Recipe)[str(first["loc"][0])].flags[0]
        raise UsageError(f"{name} {str(first.get('input'))[:60]!r}: {first['msg']}") from None


def target_settings(given: Given) -> dict[str, Any]:
    """The given settings of the target, without the training options that share a name with one."""
    return {name: value for name, value in settings_in(given).items() if name not in OWN_NAMES}


def source_of(given: Given) -> "Source":
    """The training data."""
    from specbench.data.sources import full_name
    from specbench.jobs.training.data import Source

    data = tuple(map(full_name, given.get("data") or ("code", "articles")))
    names = ("generate", "samples_per_prompt", "answer_temperature", "cache", "keep_states")
    return Source(data, **{name: given[name] for name in names if name in given})


def mtp_of(given: Given) -> "MtpStart":
    """The MTP module to train."""
    from specbench.jobs.training.start import MtpStart

    if "draft_vocabulary" in given:
        raise UsageError("--draft-vocabulary: an MTP module drafts with its target's own output; leave it out")
    if "intermediate" in given:
        raise UsageError("--intermediate: an MTP module is a layer as its target has them; leave it out")
    target = given.get("target", RunSpec.model_fields["target"].default)
    return MtpStart(target, given.get("steps", 4), given.get("begin"), given.get("target_revision"))


def head_of(given: Given) -> "HeadStart | MtpStart | PardStart":
    """The head to start from. UsageError if it cannot be evaluated with the given options."""
    from specbench.jobs.training.start import HeadStart

    if "kind" not in given:
        raise UsageError("choose a head: --kind eagle3, medusa, mtp or pard")
    if given["kind"] == "pard":
        from specbench.jobs.training.start import PardStart, Start

        if "begin" not in given:
            raise UsageError("--kind pard: name the draft to train with --from")
        if given["begin"] in ("fresh", "pruned"):
            raise UsageError("--kind pard: name an existing draft with --from, such as one of train draft")
        if "intermediate" in given:
            raise UsageError("--intermediate: a draft has its own shape; leave it out")
        return PardStart(Start(given["begin"], vocabulary=given.get("draft_vocabulary")), given.get("steps", 4))
    if given["kind"] == "mtp":
        return mtp_of(given)
    if "begin" in given:
        raise UsageError(f"--from: a head of kind {given['kind']} begins fresh; leave it out")
    found = {name: given[name] for name in ("kind", "steps", "intermediate") if name in given}
    start, k = HeadStart(**found, vocabulary=given.get("draft_vocabulary")), recipe_of(given).k
    if start.kind == "medusa" and k > start.steps:
        raise UsageError(f"--k {k}: {start.steps} heads draft {start.steps} tokens; give --steps {k}, or a smaller --k")
    return start


def draft_of(given: Given) -> "Draft":
    """The requested training of a network."""
    from specbench.jobs.training.start import Start

    names = ("begin", "layers", "hidden", "intermediate", "heads", "kv_heads", "keep")
    found: dict[str, Any] = {name: given[name] for name in names if name in given}
    if "parameters" in given:
        found["parameters"] = parse_size(given["parameters"], "--parameters")
    return training_of(given, Start(**found, vocabulary=given.get("draft_vocabulary")))


def training_of(given: Given, start: "Beginning") -> "Draft":
    """A training with the given starting point."""
    from specbench.jobs.training.train import Draft

    return Draft(
        settings=target_settings(given),
        start=start,
        source=source_of(given),
        recipe=recipe_of(given),
        output=given["output"],
        hours=given.get("hours"),
        minutes=given.get("checkpoint_minutes", 5.0),
        licence=given.get("license"),
        command=shlex.join(["specbench", *map(redact, sys.argv[1:])]),
    )
