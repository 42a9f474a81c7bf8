"""Synthetic click logs in the original file formats, with the fitted popularity of the real ones."""
