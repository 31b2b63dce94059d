"""specbench: does speculative decoding pay for this pair, this method and this K, on this hardware?"""

__version__ = "0.1.0"
