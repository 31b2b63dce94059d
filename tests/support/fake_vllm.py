"""vLLM's place in tests: the child of the backend as it is, over a package `vllm` that decodes nothing but counts.

The token after x is x + 1. A draft of K tokens is accepted as `ACCEPTED` says, round after round. What goes wrong is
named by the folder of the model: .../dies, .../hangs, .../raises, .../prints.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

CHILD = Path(__file__).parents[2] / "specbench" / "backends" / "engines" / "vllm_child.py"
ACCEPTED = (2, 0, 1)
FIRST = 0.0  # seconds that it says the first token took


class LLM:
    """Counts upwards."""

    def __init__(self, **options: Any) -> None:
        print("what libraries print")
        self.drafted = (options.get("speculative_config") or {}).get("num_speculative_tokens", 0)
        self.detailed = "per_request_spec_decode_metrics" in options
        if self.detailed and not self.drafted:
            raise ValueError("metrics of speculation need it")
        self.fault = Path(options["model"]).name
        if self.fault == "raises":
            raise RuntimeError("no kernel\nfor this machine")

    def generate(self, prompts: list[dict[str, Any]], params: list[Any], use_tqdm: bool) -> list[Any]:
        if self.fault == "dies":
            print("Error: the engine core died", file=sys.stderr, flush=True)
            os._exit(3)
        if self.fault == "hangs":
            time.sleep(3600)
        return [self.output(one["prompt_token_ids"], param) for one, param in zip(prompts, params, strict=True)]

    def output(self, prompt: list[int], param: Any) -> Any:
        tokens = [(prompt[-1] + 1 + n) % 61 for n in range(param.max_tokens)]
        ended = [n for n, token in enumerate(tokens) if token in param.stop_token_ids]
        tokens = tokens[: ended[0] + 1] if ended else tokens
        rounds = self.rounds(len(tokens)) if self.drafted else []
        steps = {"per_step_drafted": [self.drafted] * len(rounds), "per_step_accepted": rounds}
        drafting = SimpleNamespace(to_dict=lambda: steps) if self.detailed else None
        completion = SimpleNamespace(token_ids=tokens, spec_decode_metrics=drafting)
        return SimpleNamespace(outputs=[completion], metrics=SimpleNamespace(first_token_latency=FIRST))

    def rounds(self, tokens: int) -> list[int]:
        """Accepted tokens of every round: like vLLM's, the last one may reach beyond the end."""
        found: list[int] = []
        while 1 + sum(found) + len(found) < tokens:
            found.append(min(ACCEPTED[len(found) % len(ACCEPTED)], self.drafted))
        return found


def installed() -> dict[str, ModuleType]:
    """The package."""
    vllm, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    vllm.LLM, vllm.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    platforms.current_platform = SimpleNamespace(device_type="cpu")  # type: ignore[attr-defined]
    return {"vllm": vllm, "vllm.platforms": platforms}


if __name__ == "__main__":
    sys.modules.update(installed())
    runpy.run_path(str(CHILD), run_name="__main__")
