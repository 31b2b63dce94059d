"""Hugging Face checkpoints as functions (context, token tree) → distributions; caches and masks are ours."""

import logging

# transformers imports torchao if installed; torchao then logs every kernel that it has for other machines only.
for _library in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_library).setLevel(logging.ERROR)
