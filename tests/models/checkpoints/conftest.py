"""A hub with one tiny checkpoint, for the tests of fetching."""

from tests.support.hub_model import files, naps, saved, serve

__all__ = ["files", "naps", "saved", "serve"]
