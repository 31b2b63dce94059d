"""The settings that determine a trained draft's weights, besides its start, its teacher and its data. Pure."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.settings import Setting

Divergence = Literal["forward-kl", "reverse-kl", "jsd", "tv", "overlap", "hybrid"]  # from the teacher's rows
Loss = Divergence | Literal["cross-entropy"]  # of the text alone
HELP = (
    "What is learned: a data set as --dataset takes it (code, humaneval, jsonl:FILE …), or files of text: text:FILE, "
    "text:FOLDER, text:'FOLDER/**/*.md'. Repeatable."
)


class Recipe(BaseModel):
    """How a draft is trained: equal recipes on equal data give equal weights, in float32 on one machine.

    tokens counts learned tokens, repetitions of the data included; `rows` sequences of at most `length` tokens are one
    pass, `accumulation` passes one step of AdamW. losses share the run in equal parts. At temperature 0 the teacher's
    distribution is taken at 1, because a point mass carries less information. k: the lookahead of the evaluation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # fmt: off
    losses: Annotated[tuple[Loss, ...], Field(min_length=1), Setting(
        "Training", "training", "forward-kl, reverse-kl, jsd, tv, overlap or hybrid, or cross-entropy (of the text, "
        "without the target); several, joined by commas, share the run.", usual="forward-kl,hybrid", flags=("--loss",),
        typed=str)] = ("forward-kl", "hybrid")
    beta: Annotated[float, Field(gt=0, lt=1), Setting("Training", "training", "β of --loss jsd.")] = 0.5
    samples: Annotated[Literal["teacher", "student", "mixed"], Setting(
        "Training", "training", "Whose text is learned: teacher (the data), student (what the draft writes after its "
        "prompts), or mixed.")] = "teacher"
    prompts: Annotated[bool, Setting(
        "Training", "training", "Learn the tokens of prompts, too, and not of answers alone.",
        flags=("--learn-prompts/--learn-answers",))] = False
    tokens: Annotated[int, Field(ge=1, le=10**12), Setting(
        "Training", "training", "Number of tokens to train on, repetitions of the data counted.")] = 1_000_000
    rows: Annotated[int, Field(ge=1, le=65536), Setting(
        "Training", "training", "Sequences per pass, on every device.")] = 8
    length: Annotated[int, Field(ge=2, le=10**7), Setting(
        "Training", "training", "Maximum tokens per sequence; of a longer one a part is learned.")] = 256
    accumulation: Annotated[int, Field(ge=1, le=10**6), Setting(
        "Training", "training", "Passes per optimiser step.")] = 1
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False), Setting(
        "Training", "training", "Highest learning rate.")] = 1e-3
    warmup: Annotated[float, Field(ge=0, lt=1), Setting(
        "Training", "training", "Share of the run for learning-rate warm-up.", flags=("--rate-warmup",))] = 0.05
    decay: Annotated[float, Field(ge=0, le=1), Setting("Training", "training", "Weight decay of AdamW.")] = 0.01
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False), Setting(
        "Training", "training", "Gradient clipping: largest norm of a gradient.")] = 1.0
    precision: Annotated[Literal["float32", "bfloat16"], Setting(
        "Training", "training", "Dtype of the passes; weights are kept in float32.")] = "float32"
    evaluations: Annotated[int, Field(ge=1, le=10**6), Setting(
        "Training", "training", "How often the draft is judged on held-out text.")] = 20
    held_out: Annotated[int, Field(ge=1, le=10**6), Setting(
        "Training", "training", "Held-out sequences, evenly over the categories.")] = 64
    patience: Annotated[int, Field(ge=1, le=10**6), Setting(
        "Training", "training", "Stop after this many evaluations without a longer accepted length.")] = 5
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False), Setting(
        "Sampling", "sampling", "Temperature of later decoding.")] = 0.0
    k: Annotated[int, Field(ge=1, le=512), Setting("Method", "lookahead", "Lookahead at which the draft is "
    "judged.")] = 4
    seed: Annotated[int, Field(ge=0, lt=2**63), Setting("Measuring", "draws", "Seed of every random choice.")] = 0
    # fmt: on

    def loss(self, done: float) -> Loss:
        """The name of the loss at a share of the run, from 0 to 1."""
        return self.losses[min(int(done * len(self.losses)), len(self.losses) - 1)]

    def factor(self, done: float) -> float:
        """The factor of the learning rate: a linear warm-up, then half a cosine down to a tenth."""
        if done < self.warmup:
            return 0.01 + 0.99 * done / self.warmup
        through = (done - self.warmup) / (1 - self.warmup)
        return 0.1 + 0.9 * (1 + math.cos(math.pi * min(through, 1.0))) / 2
