"""Engines besides ours: transformers' generate(), vLLM, llama.cpp, and servers of completions."""
