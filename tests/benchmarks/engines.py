"""All engines in one table: native, transformers, vLLM and llama.cpp, each with its baseline and its speculation.

    python -m tests.benchmarks.engines --smollm2 DIR --smollm2-draft DIR --save results/benchmarks/engines.md

Three pairs: the shipped one; SmolLM2 with a trained draft, and with prompt lookup; the scale pair of 300 M weights.
Greedy, the same prompts, new tokens, dtype and threads, each engine in the way that it takes by default (--tier auto),
turn by turn beside each other where memory is enough. Engines must be installed: `specbench backend install`.

Other engines read checkpoints whole: the target of 300 M weights is written to a folder, and a draft whose head knows
some tokens only, or fewer than the target, gets a row for every token of it, for all engines alike. The rows of tokens
that it does not know are those of a token that it knows, with a lower id: greedily, no such token is ever drafted.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import specbench
from specbench.files import ASSETS
from specbench.models.checkpoints.write_scale_model import write_scale_model
from specbench.results.cells import agreements
from specbench.show.engines import agreement_lines, differences, ratios, remarks
from specbench.wording import grouped
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, listed, say

SCALE, WEIGHTS, OFFSETS = "llama-300m", "model.safetensors", "d2t"
PAIR = ASSETS / "pair"
COLUMNS = ("engine", "k", "tier_resolved", "dtype_resolved", "threads", "baseline_tokens_per_second",
           "tokens_per_second", "speedup", "speedup_low", "speedup_high", "tokens_per_round", "alpha", "rounds",
           "accepted", "lossless", "status", "error")  # fmt: skip


def whole(draft: Path, rows: int, out: Path) -> Path:
    """The draft with a head of so many rows, in a folder of its own; as it is where it has as many."""
    tensors, config = load_file(draft / WEIGHTS), json.loads((draft / "config.json").read_text(encoding="utf-8"))
    embedding = tensors["model.embed_tokens.weight"]
    head, offsets = tensors.get("lm_head.weight", embedding), tensors.pop(OFFSETS, None)
    tensors.pop("t2d", None)
    if len(head) == rows:
        return draft
    known = torch.arange(len(head)) + (0 if offsets is None else offsets)
    wide = head[known.argmin()].repeat(rows, 1)
    wide[known] = head
    tensors["lm_head.weight"] = wide
    tensors["model.embed_tokens.weight"] = torch.cat(
        [embedding, embedding.new_zeros(rows - len(embedding), embedding.shape[1])]
    )
    config |= {"vocab_size": rows, "tie_word_embeddings": False}
    config.pop("draft_vocab_size", None)
    shutil.copytree(draft, out, ignore=shutil.ignore_patterns(WEIGHTS, "checkpoints", ".lock"))
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return out


def cases(args: Any, folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The pairs that were asked for, by a title."""
    asked = listed(args.pairs)
    if "demo" in asked:
        yield "The shipped pair", {"target": "demo", "draft": "demo-draft"}
    if "smollm2" in asked and args.smollm2:
        target = Path(args.smollm2)
        rows = json.loads((target / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        if args.smollm2_draft:
            draft = whole(Path(args.smollm2_draft), rows, folder / "smollm2-draft")
            yield "SmolLM2 with its trained draft", {"target": str(target), "draft": str(draft)}
        yield "SmolLM2 with prompt lookup", {"target": str(target), "method": "prompt-lookup"}
    if "scale" in asked:
        target = folder / SCALE
        say(f"growing {target}")
        write_scale_model("demo", SCALE, target, torch.float32)
        rows = json.loads((target / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        draft = whole(PAIR / "draft", rows, folder / "scale-draft")
        yield "The scale pair of 300 M weights", {"target": str(target), "draft": str(draft)}


def measure(args: Any, title: str, pair: Mapping[str, Any], folder: Path) -> list[Sheet]:
    """The tables of a pair, one for every lookahead."""
    say(f"measuring: {title}")
    settings = {"dataset": args.dataset, "limit": args.prompts, "max_new_tokens": args.new, "dtype": args.dtype}
    settings |= {"k": args.k, "tier": args.tier, "ignore_eos": True, "seed": args.seed, "warmup": args.warmup}
    found = specbench.run(**pair, **settings, backend=args.engines, output_dir=folder)
    notes = [*agreement_lines(agreements(found.cells))]
    return [sheet_of(title, rows, notes) for rows in grouped(found.rows(), lambda row: row["k"])]


def sheet_of(title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Sheet:
    k = rows[0]["k"]
    lines = [{name: row.get(name) for name in COLUMNS} for row in rows]
    said = [*ratios(rows), *differences(rows), *(line for line in notes if f", K {k}:" in line), *remarks(rows)]
    return Sheet(f"{title}, K = {k}", lines, said)


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--pairs", default="demo,smollm2,scale", help="which (demo,smollm2,scale)")
    options.add_argument("--engines", default="native,transformers,vllm,llama.cpp", help="which")
    options.add_argument("--smollm2", metavar="DIR", help="the checkpoint of SmolLM2; without it, none of it")
    options.add_argument("--smollm2-draft", metavar="DIR", help="its draft; without it, prompt lookup alone")
    options.add_argument("--dtype", default="float32", help="of all engines (float32)")
    options.add_argument("--dataset", default="code", help="(code)")
    options.add_argument("--prompts", type=int, default=20, help="how many (20)")
    options.add_argument("--new", type=int, default=128, help="new tokens per prompt (128)")
    options.add_argument("--k", default="4", help="lookahead, or a list, each with processes of its own (4)")
    options.add_argument("--tier", default="auto", help="of all engines (auto)")
    options.add_argument("--warmup", type=int, default=2, help="prompts that do not count (2)")
    bench = harness.begin("engines", "Engines side by side", options.parse_args())
    with tempfile.TemporaryDirectory() as made:
        sheets = [
            one for case in cases(bench.args, Path(made)) for one in measure(bench.args, *case, Path(made) / "runs")
        ]
    bench.publish(sheets)


if __name__ == "__main__":
    main()
