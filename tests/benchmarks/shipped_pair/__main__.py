"""How the shipped pair was made: `python -m tests.benchmarks.shipped_pair --work DIR` makes it again from scratch.

A Llama target grows in depth while it learns (4, 8, 16 layers: new layers start as the identity, so that nothing is
lost); then the one-layer draft is distilled from the logits that the target computes for its own loss, at last alone.
The script writes a checkpoint every few minutes and goes on from it when it is started again with the same folder.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from specbench.files import replacing
from tests.benchmarks.shipped_pair import corpus, export
from tests.benchmarks.shipped_pair.shapes import VOCABULARY, deepen, first_layer, llama, new_model

EVERY = 200  # steps between two evaluations and checkpoints
EVAL_ROWS, EVAL_LENGTH = 32, 256
COMMAND = "python -m tests.benchmarks.shipped_pair --work work --out specbench/assets/pair"


@dataclass(frozen=True)
class Stage:
    """`steps` optimiser steps of a target of `layers` layers on `rows` windows of `length` tokens."""

    layers: int
    steps: int
    rows: int
    length: int
    target: bool = True  # whether the target learns
    draft: bool = False  # whether the draft learns from the target's rows


STAGES = (
    Stage(layers=4, steps=2400, rows=16, length=256),
    Stage(layers=8, steps=1200, rows=16, length=256),
    Stage(layers=16, steps=700, rows=16, length=256, draft=True),
    Stage(layers=16, steps=500, rows=4, length=1024, draft=True),
    Stage(layers=16, steps=1200, rows=8, length=512, target=False, draft=True),
)


class Learner:
    """One model with its optimisers: Muon for the matrices inside the layers, AdamW for embeddings and norms."""

    def __init__(self, model: LlamaForCausalLM, rate: float) -> None:
        self.model, self.rate = model, rate
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.forward: Any = torch.compile(model.model.forward)

    def logits(self, ids: Tensor) -> Tensor:
        """[rows, length, vocabulary] in float32, computed in bfloat16 on float32 master weights."""
        with torch.autocast(ids.device.type, torch.bfloat16):
            hidden = self.forward(input_ids=ids, use_cache=False).last_hidden_state
            logits: Tensor = self.model.lm_head(hidden).float()
        return logits

    def step(self, loss: Tensor, factor: float) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.rate * factor
            optimiser.step()
            optimiser.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimisers": [o.state_dict() for o in self.optimisers]}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


@torch.compile
def distillation_loss(p: Tensor, logits: Tensor) -> Tensor:
    """Forward KL (but for the entropy of p, which is constant) plus total variation, which is 1 − α, to the rows p."""
    log_q = F.log_softmax(logits, dim=-1)
    return ((p - log_q.exp()).abs() / 2 - p * log_q).sum(-1).mean()


def schedule(stage: Stage, step: int, last: bool) -> float:
    """Factor on the learning rate: a short warm-up, then constant; linear to zero in a model's last stage."""
    warm = min(1.0, (step + 1) / 60)
    return warm * (1 - step / stage.steps if last else 1.0)


@torch.no_grad()
def evaluate(target: Learner, draft: Learner | None, held_out: corpus.Ids) -> dict[str, float]:
    """Held-out loss in nats per token of both models, and α and greedy agreement on held-out text."""
    x = torch.from_numpy(corpus.windows(held_out, EVAL_ROWS, EVAL_LENGTH, (1,)))
    logits = target.logits(x[:, :-1])
    loss = {"target_loss": F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).item()}
    if draft is None:
        return loss
    mine = draft.logits(x[:, :-1])
    overlap = torch.minimum(logits.softmax(-1), mine.softmax(-1)).sum(-1).mean().item()
    agree = (logits.argmax(-1) == mine.argmax(-1)).float().mean().item()
    draft_loss = F.cross_entropy(mine.flatten(0, 1), x[:, 1:].flatten()).item()
    return {**loss, "draft_loss": draft_loss, "alpha": overlap, "greedy_agreement": agree}


@dataclass
class Progress:
    """Where training stands: the stage, the step in it, the tokens seen."""

    stage: int = 0
    step: int = 0
    tokens: int = 0


class Training:
    """The whole run over `stages` in the folder `work`; resumes from the checkpoint that lies there."""

    def __init__(self, work: Path, ids: corpus.Ids, held_out: corpus.Ids, stages: tuple[Stage, ...] = STAGES) -> None:
        self.work, self.ids, self.held_out, self.stages = work, ids, held_out, stages
        self.progress = Progress()
        torch.manual_seed(0)
        self.target = Learner(new_model(stages[0].layers), rate=4e-3)
        self.draft: Learner | None = None
        if (work / "checkpoint.pt").exists():
            self.restore()

    def restore(self) -> None:
        saved = torch.load(self.work / "checkpoint.pt", weights_only=True)
        self.progress = Progress(**saved["progress"])
        self.target = Learner(LlamaForCausalLM(llama(saved["layers"])), rate=4e-3)
        self.target.load(saved["target"])
        if saved["draft"] is not None:
            self.draft = Learner(LlamaForCausalLM(llama(1)), rate=3e-3)
            self.draft.load(saved["draft"])

    def save(self) -> None:
        draft = self.draft and self.draft.state()
        layers = len(self.target.model.model.layers)
        state = {"progress": asdict(self.progress), "layers": layers, "target": self.target.state(), "draft": draft}
        with replacing(self.work / "checkpoint.pt") as temporary:
            torch.save(state, temporary)

    def enter(self, stage: Stage) -> None:
        """Give both models the shape that `stage` asks for."""
        if len(self.target.model.model.layers) != stage.layers:
            self.target = Learner(deepen(self.target.model, stage.layers), rate=4e-3)
        if stage.draft and self.draft is None:
            self.draft = Learner(first_layer(self.target.model), rate=3e-3)

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the end; yields an evaluation every `EVERY` steps, after the checkpoint that belongs to it."""
        for number in range(self.progress.stage, len(self.stages)):
            stage = self.stages[number]
            self.enter(stage)
            while self.progress.step < stage.steps:
                self.one_step(number, stage)
                if self.progress.step % EVERY == 0 or self.progress.step == stage.steps:
                    self.save()
                    yield {**asdict(self.progress), **evaluate(self.target, self.draft, self.held_out)}
            self.progress = Progress(number + 1, 0, self.progress.tokens)
        self.save()

    def figures(self) -> dict[str, float]:
        """Steps and tokens of the whole run, and over how many steps the draft was distilled."""
        done = self.stages[: self.progress.stage]
        steps, distilled = sum(s.steps for s in done if s.target), sum(s.steps for s in done if s.draft)
        return {"steps": steps, "tokens": self.progress.tokens, "distilled": distilled}

    def one_step(self, number: int, stage: Stage) -> None:
        step, later = self.progress.step, self.stages[number + 1 :]
        x = torch.from_numpy(corpus.windows(self.ids, stage.rows, stage.length, (0, number, step)))
        with torch.set_grad_enabled(stage.target):
            logits = self.target.logits(x[:, :-1])
        p = logits.detach().softmax(-1)
        if stage.target:
            loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
            self.target.step(loss, schedule(stage, step, last=not any(s.target for s in later)))
        if self.draft is not None:
            loss = distillation_loss(p, self.draft.logits(x[:, :-1]))
            self.draft.step(loss, schedule(stage, step, last=not any(s.draft for s in later)))
        self.progress.step += 1
        self.progress.tokens += stage.rows * stage.length if stage.target else 0


def main() -> None:
    """Corpus, tokenizer, training, export; every part that exists in `--work` already is not made again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of checkpoints and logs; start again to go on")
    parser.add_argument("--out", type=Path, help="where the finished pair is written (target/, draft/, README.md)")
    parser.add_argument(
        "--docs", type=Path, action="append", help="documentation sources; default: where Debian puts them"
    )
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    documents = corpus.read_corpus(arguments.docs or corpus.documentation_roots())
    tokenizer = export.tokenizer_of(arguments.work, documents, VOCABULARY)
    ids, held_out = corpus.encode(tokenizer, documents)
    training, began = Training(arguments.work, ids, held_out), time.time()
    for record in training.run():
        line = json.dumps({**record, "seconds": round(time.time() - began)})
        print(line, flush=True)
        with (arguments.work / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(line + "\n")
    if arguments.out and training.draft:
        models = {"target": training.target.model, "draft": training.draft.model}
        figures = {**training.figures(), **evaluate(training.target, training.draft, held_out)}
        export.write_pair(arguments.out, tokenizer, models, documents, figures, COMMAND)


if __name__ == "__main__":
    main()
