"""The backend `openai`: any server that speaks OpenAI's API of completions, measured from outside."""
