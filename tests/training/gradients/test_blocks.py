"""Sums over examples, in blocks."""

import torch

from apportion.training.gradients.blocks import ENTRIES_AT_ONCE, TERMS, summed_products


def test_blocks_of_a_large_product_are_added_in_float64_each_entry_once() -> None:
    generator = torch.Generator().manual_seed(1)
    examples, outwards, inwards = 2 * TERMS + 3, 300, 301
    assert outwards * inwards > ENTRIES_AT_ONCE
    left = torch.randn(examples, outwards, generator=generator)
    right = torch.randn(examples, inwards, generator=generator)
    found = summed_products(left, right)
    expected = torch.zeros(outwards, inwards, dtype=torch.float64)
    for some, more in zip(left.split(TERMS), right.split(TERMS), strict=True):
        expected += (some.T @ more).double()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(found, left.double().T @ right.double(), rtol=0, atol=1e-3)


def test_layers_without_inputs_have_empty_sums_in_batches_of_every_size() -> None:
    assert summed_products(torch.ones(600, 3), torch.ones(600, 0)).shape == (3, 0)
