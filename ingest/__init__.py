"""The loader: nodes, engine, batch, window plan and its verifier."""
