"""Rows from other libraries' pipelines, and batches for other libraries' loops."""
