"""The version, for the package and for its distribution."""

__version__ = "0.1.0"
