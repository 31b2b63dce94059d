"""The backend `vllm`: vLLM's offline engine in a virtual environment and processes of its own."""
