"""Contexts beyond all windows, and long enough that attention divides its keys: greedy output is the baseline's."""

import json
import random
from pathlib import Path

import pytest

from specbench.models.network import attention
from tests.support.frontdoor import Command
from tests.support.tinypair import save_pair

LENGTH = attention.LONG["cpu"] + 500
METHODS = ("chain", "prompt-lookup", "tree-top", "retrieval", "streaming", "triforce")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_long_contexts_are_decoded_losslessly(method: str, command: Command, tmp_path: Path) -> None:
    pair = save_pair(tmp_path, LENGTH + 40)
    words = random.Random(0).choices([f"w{number}" for number in range(60)], k=LENGTH)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": " ".join(words)}) + "\n")
    settings = ("--max-new-tokens", "12", "--warmup", "0", "--ignore-eos", "--dtype", "float64", "-q")
    found = command("run", *pair.options, "--dataset", f"jsonl:{tmp_path}/p.jsonl", "--method", method, *settings).ok()
    (row,) = found.table()
    assert (row["status"], row["lossless"]) == ("ok", "identical")
    assert [line["prompt_tokens"] for line in found.table("samples.csv")] == [str(LENGTH)]
