"""The node engine: life cycle, state, threads and errors of loader stages."""
