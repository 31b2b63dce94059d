"""llama-server's place in tests: the same options and answers, but the token after x is x + 1.

Of every draft of K tokens one is accepted. What goes wrong is named by the file of the model: dies, hangs, garbage.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

EOS = 60


class Handler(BaseHTTPRequestHandler):
    """Answers as the server does."""

    options: dict[str, str] = {}  # noqa: RUF012 (set once, before it serves)

    def do_GET(self) -> None:
        self.answer({"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = os.path.basename(self.options["-m"])
        if fault == "dies":
            print("error: out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if fault == "hangs":
            time.sleep(3600)
        self.answer({"tokens": []} if fault == "garbage" else self.completion(asked))

    def completion(self, asked: dict[str, Any]) -> dict[str, Any]:
        tokens = [(asked["prompt"][-1] + 1 + n) % 61 for n in range(asked["n_predict"])]
        if EOS in tokens and not asked["ignore_eos"]:
            tokens = tokens[: tokens.index(EOS) + 1]
        k, rounds = int(self.options.get("--spec-draft-n-max", 0)), len(tokens) // 2
        drafts = {"draft_n": k * rounds, "draft_n_accepted": len(tokens) - 1 - rounds} if k else {}
        return {"tokens": tokens, "timings": {"prompt_ms": 0.001, **drafts}, "asked": asked}

    def answer(self, found: dict[str, Any]) -> None:
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


def main() -> None:
    words = sys.argv[1:]
    if words == ["--version"]:
        print("version: 7 (fake)\nbuilt with care", file=sys.stderr)
        return
    Handler.options = {name: value for name, value in pairwise(words) if name.startswith("-")}
    if os.path.basename(Handler.options["-m"]) == "no-start":
        sys.exit("error: failed to load model")
    ThreadingHTTPServer(("127.0.0.1", int(Handler.options["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
