"""The backend `llama.cpp`: llama-server on GGUF files, a process per arm, on this machine."""
