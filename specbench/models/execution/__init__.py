"""How a pass or a round is made cheap: compiled, captured, with the right number of threads."""
