from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.generate.mixing import Permutation, keys, mix32

KEYS = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


@pytest.mark.parametrize("bits", [*range(1, 17), 20])
def test_a_permutation_hits_every_number_of_its_bits_once(bits):
    everything = np.arange(1 << bits, dtype=np.uint32)
    np.testing.assert_array_equal(np.sort(Permutation(KEYS, bits=bits)(everything)), everything)


def test_a_permutation_of_32_bits_has_no_collisions_and_fills_the_range():
    ids = Permutation(KEYS)(np.arange(1_000_000, dtype=np.uint32))
    assert len(np.unique(ids)) == 1_000_000
    assert (ids >= 2**31).mean() == pytest.approx(0.5, abs=0.01)
    by_top_bits = np.bincount(ids >> np.uint32(24), minlength=256)
    assert by_top_bits.min() > 3_500
    assert by_top_bits.max() < 4_400


def undo(permutation: Permutation, value: int) -> int:
    """The number whose image is `value`, by undoing each step in plain integers."""
    mask = (1 << permutation.bits) - 1
    shift = max(1, permutation.bits // 2)
    for position in (3, 2, 1, 0):
        step = value
        for _ in range(permutation.bits):
            step = value ^ (step >> shift)
        odd = 0x846CA68B if position % 2 else 0x7FEB352D
        value = (step * pow(odd, -1, 1 << 32)) & mask
        value = (value ^ permutation.keys[position]) & mask
    return value


@pytest.mark.parametrize("bits", [32, 20, 7])
def test_every_step_can_be_undone(bits):
    permutation = Permutation(KEYS, bits=bits)
    numbers = np.random.default_rng(5).integers(0, 1 << bits, 50).astype(np.uint32)
    assert [undo(permutation, int(image)) for image in permutation(numbers)] == numbers.tolist()


def test_mix32_is_a_bijection_of_the_low_bits_and_depends_on_the_key():
    numbers = np.arange(1_000_000, dtype=np.uint32)
    assert len(np.unique(mix32(numbers, np.uint32(9)))) == 1_000_000
    assert (mix32(numbers, np.uint32(9)) == mix32(numbers, np.uint32(10))).sum() < 10
    np.testing.assert_array_equal(numbers, np.arange(1_000_000))  # the input stays as it was


def test_values_are_those_of_plain_integer_arithmetic():
    def mix(x: int) -> int:
        for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
            x ^= x >> shift
            x = (x * multiplier) & 0xFFFFFFFF
        return x ^ (x >> 16)

    numbers = [0, 1, 2, 2**31, 2**32 - 1]
    assert mix32(np.array(numbers, np.uint32), np.uint32(0)).tolist() == [mix(x) for x in numbers]
    assert mix32(np.array(numbers, np.uint32), np.uint32(77)).tolist() == [mix(x ^ 77) for x in numbers]


def test_ids_are_pinned():
    assert Permutation(KEYS)(np.arange(3, dtype=np.uint32)).tolist() == [3164256273, 1812553490, 2339784961]


def test_keys_differ_by_seed_use_and_column():
    drawn = [tuple(keys(seed, stage, column, 4)) for seed in (0, 1, 2**63) for stage in (1, 2) for column in (0, 1)]
    assert len(set(drawn)) == len(drawn)
    assert keys(3, 4, 5, 2).tolist() == keys(3, 4, 5, 4)[:2].tolist()


@pytest.mark.parametrize("bits", [0, 33])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match=f"bits={bits}"):
        Permutation(KEYS, bits=bits)
    with pytest.raises(ValueError, match="4 keys"):
        Permutation(KEYS[:3])
