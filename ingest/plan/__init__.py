"""Which row must be in which slot at which step: the window planner of one rank, and the verifier of its plans."""
