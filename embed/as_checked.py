"""Tensors of a batch that were checked once, and that backward and step read again: whether they were changed since."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class AsChecked:
    """Named tensors as they are now; None among them are passed over.

    As torch does with the tensors that it saves for a backward, this counts changes in place that torch knows of; what
    was written through an array that shares the memory is not seen, nor are tensors made in inference mode.
    """

    def __init__(self, tensors: Mapping[str, Tensor | None]) -> None:
        self._known = [(name, t, t._version) for name, t in tensors.items() if t is not None and not t.is_inference()]

    def check(self) -> None:
        """RuntimeError that names the first tensor that was changed in place."""
        for name, tensor, version in self._known:
            if tensor._version != version:
                raise RuntimeError(
                    f"{name} of the batch was changed in place after stage(batch), whose backward and step read it: "
                    "leave a batch as it is until its step, or work on a copy"
                )
