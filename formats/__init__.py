"""Bytes on disk to Arrow record batches of a declared schema, and the synthetic generator."""
