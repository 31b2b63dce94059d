"""The vLLM process behind a pipe: one line of JSON in, one line of JSON out, until the input ends.

Run by the Python of vLLM's own environment: it imports nothing of specbench, and vLLM only to open an engine.

    {"op": "open", "llm": {arguments of LLM}}
        → {"device": "cpu"}
    {"op": "decode", "prompts": [[ids]], "draws": [{arguments of SamplingParams}]}
        → {"seconds": of all, "found": [{"tokens": [ids], "first": seconds, "drafted": [of rounds], "accepted": [...]}]}
    any failure
        → {"error": "in one line"}
"""

import json
import os
import signal
import sys
import time
from queue import Queue
from threading import Thread
from typing import Any

MOMENT = 0.2  # seconds between the end of a process's files and its own


class Engine:
    """An engine that is opened once and decodes token ids."""

    def open(self, llm: dict[str, Any]) -> dict[str, Any]:
        from vllm import LLM
        from vllm.platforms import current_platform

        self.llm = LLM(**llm)
        return {"device": str(current_platform.device_type)}

    def decode(self, prompts: list[list[int]], draws: list[dict[str, Any]]) -> dict[str, Any]:
        from vllm import SamplingParams

        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        params = [SamplingParams(**draw) for draw in draws]
        began = time.perf_counter()
        outputs = self.llm.generate(requests, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "found": [summary(one, seconds) for one in outputs]}


def summary(output: Any, seconds: float) -> dict[str, Any]:
    """The results of one prompt: its new tokens, seconds to the first, and every round with a draft."""
    completion, times = output.outputs[0], output.metrics
    drafting = getattr(completion, "spec_decode_metrics", None)
    steps = drafting.to_dict() if drafting is not None else {}
    first = times.first_token_latency if times is not None else seconds
    return {
        "tokens": list(completion.token_ids),
        "first": min(max(float(first), 0.0), seconds),
        "drafted": steps.get("per_step_drafted", []),
        "accepted": steps.get("per_step_accepted", []),
    }


def read(lines: "Queue[str | None]", parent: int) -> None:
    """Pass on incoming lines. If they end because the writing process ended, end all processes
    here, even in the middle of a decode."""
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)
    time.sleep(MOMENT)
    if os.getppid() != parent and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Answer line by line. Output printed by libraries goes to the log, not among the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine, lines = Engine(), Queue[str | None]()
    Thread(target=read, args=(lines, os.getppid()), daemon=True).start()
    for line in iter(lines.get, None):
        message = json.loads(line)
        try:
            answer = getattr(engine, message.pop("op"))(**message)
        except Exception as error:  # any error of the engine is reported in one line
            words = " ".join(str(error).split())
            answer = {"error": f"{type(error).__name__}: {words[-1000:]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":  # its workers import this file as well
    main()
