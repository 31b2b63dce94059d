"""A Hugging Face network as a function (context, token tree) → distributions."""
