"""Large products by either library are the same product."""

import torch

from coterie.engine.kernels import large_products
from coterie.engine.kernels.large_products import LARGE, product, tune_products


def test_large_products_are_the_same_by_either_library(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(700, 512, generator=generator)
    b = torch.randn(LARGE // a.numel() + 1, 512, generator=generator).T
    exact = a.double() @ b.double()
    for asked in (False, True):
        monkeypatch.setattr(large_products, "by_onednn", asked)
        assert (product(a, b) - exact).abs().max() < 1e-3
        double = product(a.double(), b.double())
        assert double.dtype == torch.float64


def test_it_is_taken_only_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(large_products, "by_onednn", False)  # set back when the test ends
    monkeypatch.setattr(large_products, "processor_is_amd", lambda: False)
    tune_products()
    assert not large_products.by_onednn
    monkeypatch.setattr(large_products, "processor_is_amd", lambda: True)
    tune_products()
    assert large_products.by_onednn == torch.backends.mkl.is_available()
