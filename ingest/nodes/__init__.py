"""Nodes that read, transform, batch, shuffle, index and plan rows."""
