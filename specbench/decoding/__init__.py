"""The algebra of speculative decoding: drafters propose, verifiers judge, one loop."""
