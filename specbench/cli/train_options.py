"""The options of commands that train: where a draft starts from, what it learns, how, and where it is kept.

Knows declarations, and what options become; must not know any command.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from specbench.cli.options import OWN, STYLE, Given, Option, of_setting, setting, settings_in
from specbench.errors import UsageError
from specbench.jobs.parsing import parse_size
from specbench.settings import declared
from specbench.spec import RunSpec
from specbench.training.data import HELP
from specbench.training.recipe import Recipe

if TYPE_CHECKING:
    from specbench.jobs.train import Draft
    from specbench.jobs.train_data import Source
    from specbench.jobs.train_start import Beginning, HeadStart, MtpStart, PardStart, Start

BEGIN, DATA, TRAINING, OUTPUT = "Start", "Data", "Training", "Output"
TARGET = ("target", "target_revision", "dtype", "attn_implementation", "device", "trust_remote_code")
USUAL = {"max_new_tokens": 128, "batch": 16}
OWN_NAMES = {"warmup", "draft_vocabulary"}  # of options that are no settings of the target

START = (
    Option("begin", str, BEGIN, "fresh, pruned (layers and width of the target), or a checkpoint. Default: fresh.",
           ("--from",)),
    Option("layers", int, BEGIN, "Layers of the draft. Default: 2.", low=1),
    Option("hidden", int, BEGIN, "Its width. Default: half the target's.", low=1),
    Option("intermediate", int, BEGIN, "Width of its MLPs.", low=1),
    Option("heads", int, BEGIN, "Its query heads.", low=1),
    Option("kv_heads", int, BEGIN, "Its key/value heads.", low=1),
    Option("parameters", str, BEGIN, "At most so many parameters, such as 15M: the width follows."),
    Option("keep", Literal["even", "first", "importance"], BEGIN, "Which layers --from pruned keeps: evenly spaced, "
           "the first, or the most important. Default: even."),
    Option("draft_vocabulary", int, BEGIN, "Tokens that its head knows: those that the target says most often. "
           "Default: all.", low=1),
)  # fmt: skip
TEXT = (
    Option("data", list[str], DATA, f"{HELP} Default: code and articles."),
    Option("generate", bool, DATA, "Learn the target's own answers to the prompts of --data, or the text of --data "
           "itself. Default: generate.", ("--generate/--as-it-is",)),
    Option("samples_per_prompt", int, DATA, "Answers to every prompt. Default: 1.", low=1),
    Option("answer_temperature", float, DATA, "Temperature of the answers: above that of decoding, the answers to a "
           "prompt differ. Default: --temperature.", low=0),
    Option("cache", Path, DATA, "Where answers and tokens are kept, for other trainings too. Default: in --output."),
    Option("keep_states", bool, DATA, "Keep what the target's head reads in --cache, so that its layers read every "
           "text once. Default: where text is learned more than once.", ("--keep-states/--no-keep-states",)),
)  # fmt: skip
READING = ("column", "template", "chat", "limit", "max_new_tokens", "law", "ignore_eos", "batch", "tier")
RECIPE: tuple[str | Option, ...] = (
    *(of_setting(one) for one in declared(Recipe).values() if one.setting.group == "training"),
    setting("k", "Lookahead at which drafts are judged.", 4),
    "seed",
)
HOURS = Option("hours", float, TRAINING, "Learn for so long: sets --tokens by the speed of this machine.", low=0)
KEPT: tuple[str | Option, ...] = (
    HOURS,
    Option("checkpoint_minutes", float, TRAINING, "Between two checkpoints. Default: 5.", low=0),
    Option("license", str, OUTPUT, "For the model card. Default: the target's, where it is known."),
    replace(OWN["output"], absent=..., help="The folder of the draft; a training that was cut off goes on there."),
)
HEAD_START = (
    Option("kind", Literal["eagle3", "medusa", "mtp", "pard"], BEGIN, "eagle3 (one layer on three hidden states of the "
           "target), medusa (one small head for each drafted token), mtp (one more layer of the target), or pard (a "
           "draft that goes on through masks)."),
    Option("begin", str, BEGIN, "pard: the draft that learns to, a checkpoint. mtp: a module that learns on, the "
           "target's own or a folder. Default: fresh.", ("--from",)),
    Option("steps", int, BEGIN, "Drafted tokens that are learned. eagle3, mtp: how often the head goes on from its own "
           "states; medusa: its heads; pard: 1 + its masks. Default: 4.", low=1, high=16),
    Option("intermediate", int, BEGIN, "eagle3: the width of its MLP. Default: the target's.", low=1),
    Option("draft_vocabulary", int, BEGIN, "Tokens that it can draft: those that the target says most often. "
           "Default: all.", low=1),
)  # fmt: skip
OF_NETWORKS = ("keep_states", "samples")  # what heads do not learn from
HEAD: tuple[str | Option, ...] = tuple(
    one
    for one in (*HEAD_START, *TARGET, *TEXT, *READING, *RECIPE, *KEPT, STYLE, "quiet")
    if isinstance(one, str) or one.name not in OF_NETWORKS
)
ALL: tuple[str | Option, ...] = (*TARGET, *TEXT, *READING, *START, *RECIPE, *KEPT, STYLE, "quiet")


def recipe_of(given: Given) -> Recipe:
    """What was given of a recipe; UsageError for what none can have."""
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
    """What was given of the settings of the target. A training has a warm-up and a draft vocabulary of its own, by the
    names of theirs."""
    return {name: value for name, value in settings_in(given).items() if name not in OWN_NAMES}


def start_of(given: Given) -> "Start":
    """Where a draft starts from."""
    from specbench.jobs.train_start import Start

    names = ("begin", "layers", "hidden", "intermediate", "heads", "kv_heads", "keep")
    found: dict[str, Any] = {name: given[name] for name in names if name in given}
    if "parameters" in given:
        found["parameters"] = parse_size(given["parameters"], "--parameters")
    return Start(**found, vocabulary=given.get("draft_vocabulary"))


def source_of(given: Given) -> "Source":
    """What is learned."""
    from specbench.jobs.train_data import Source

    data = tuple(given.get("data") or ("code", "articles"))
    names = ("generate", "samples_per_prompt", "answer_temperature", "cache", "keep_states")
    return Source(data, **{name: given[name] for name in names if name in given})


def pard_of(given: Given) -> "PardStart":
    """The draft that learns to go on through masks."""
    from specbench.jobs.train_start import PardStart, Start

    if "begin" not in given:
        raise UsageError("--kind pard: name the draft that learns to go on through masks with --from")
    if given["begin"] in ("fresh", "pruned"):
        raise UsageError("--kind pard: name a draft that is there already with --from, such as one of train draft")
    if "intermediate" in given:
        raise UsageError("--intermediate: a draft has its own shape; leave it out")
    return PardStart(Start(given["begin"], vocabulary=given.get("draft_vocabulary")), given.get("steps", 4))


def mtp_of(given: Given) -> "MtpStart":
    """The MTP module that learns."""
    from specbench.jobs.train_start import MtpStart

    if "draft_vocabulary" in given:
        raise UsageError("--draft-vocabulary: an MTP module drafts with its target's own output; leave it out")
    if "intermediate" in given:
        raise UsageError("--intermediate: an MTP module is a layer as its target has them; leave it out")
    target = given.get("target", RunSpec.model_fields["target"].default)
    return MtpStart(target, given.get("steps", 4), given.get("begin"), given.get("target_revision"))


def head_of(given: Given) -> "HeadStart | MtpStart | PardStart":
    """The head that training starts from. UsageError for one that cannot be judged as it is asked for."""
    from specbench.jobs.train_start import HeadStart

    if "kind" not in given:
        raise UsageError("say which head: --kind eagle3, medusa, mtp or pard")
    if given["kind"] == "pard":
        return pard_of(given)
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
    """A training of a network as it was asked for."""
    return training_of(given, start_of(given))


def training_of(given: Given, start: "Beginning") -> "Draft":
    """A training that begins with something."""
    from specbench.jobs.train import Draft

    return Draft(
        settings=target_settings(given),
        start=start,
        source=source_of(given),
        recipe=recipe_of(given),
        output=given["output"],
        hours=given.get("hours"),
        minutes=given.get("checkpoint_minutes", 5.0),
        licence=given.get("license"),
        command=shlex.join(["specbench", *sys.argv[1:]]),
    )
