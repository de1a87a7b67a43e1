import pytest
import torch

from coterie.engine.kernels import matmul as products


def matrices(kind=torch.float32):
    generator = torch.Generator().manual_seed(0)
    inner, columns = 512, products.LARGE // (512 * 512)
    assert 512 * inner * columns == products.LARGE
    return (
        torch.randn(512, inner, generator=generator, dtype=kind),
        torch.randn(columns, inner, generator=generator, dtype=kind),
    )


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_both_libraries_give_the_product_to_rounding(onednn, kind, monkeypatch):
    if onednn and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(products, "onednn_is_faster", lambda: onednn)
    a, rows = matrices(kind)
    exact = a.double() @ rows.double().T
    for b in (rows.T, rows.T.contiguous()):
        off = (products.product(a, b) - exact).abs().max() / exact.abs().max()
        assert off < 100 * torch.finfo(kind).eps


def test_only_large_products_are_given_to_onednn(monkeypatch):
    asked = []
    monkeypatch.setattr(products, "onednn_is_faster", lambda: asked.append(1))
    a, rows = matrices()
    products.product(a[1:], rows.T)
    assert not asked
    products.product(a, rows.T)
    assert asked
