"""Nodes that read, transform, batch and shuffle rows."""
