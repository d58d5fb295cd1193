"""The kernels of the structure encoder compute what PyTorch computes. They need a GPU and Triton."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from hill.models import kernels
from hill.models.layers import LevelNet, nt_xent

B, D, L, N, ROWS = 5, 70, 81, 69, 331


@pytest.fixture(autouse=True)
def _tf32() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True)


def same(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    weight = torch.randn_like(found)
    one = torch.autograd.grad((found * weight).sum(), leaves)
    other = torch.autograd.grad((expected * weight).sum(), leaves)
    for a, b in zip((found, *one), (expected, *other), strict=True):
        assert (a - b).norm() <= 3e-3 * b.norm().clamp(min=1.0)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_folded_map(dropout: float) -> None:
    leaves = [leaf(B, D), leaf(L), leaf(L), leaf(N, L), leaf(N)]
    features, slope, offset, weight, bias = leaves
    found = kernels.FoldedMap.apply(*leaves, torch.tensor([5], device="cuda"), dropout)
    hidden = F.relu(slope * features[:, :, None] + offset)
    expected = torch.einsum("nk,bdk->bnd", weight, hidden) + bias[:, None]
    if dropout:
        kept = found != 0
        assert abs(kept.float().mean().item() - 0.75) < 0.02
        expected = expected * kept / 0.75
    same(found, expected, leaves)


def test_linear_norm_relu() -> None:
    leaves = [leaf(ROWS, 40), leaf(D, 40), leaf(D), leaf(D), leaf(D)]
    rows, weight, bias, gamma, beta = leaves
    mean, variance, steps = leaf(D).detach(), leaf(D).detach().abs(), torch.tensor(3, device="cuda")
    before = mean.clone(), variance.clone()
    found = kernels.LinearNormRelu.apply(*leaves, mean, variance, steps, 0.1, 1e-5)
    expected = F.relu(F.batch_norm(F.linear(rows, weight, bias), *before, gamma, beta, True, 0.1, 1e-5))
    same(found, expected, [rows, weight, gamma, beta])
    assert torch.allclose(mean, before[0], atol=1e-3) and torch.allclose(variance, before[1], rtol=1e-2)
    assert steps.item() == 4


def test_level_net_in_prediction() -> None:
    net = LevelNet(D).cuda()
    net(leaf(B, N, D).detach())
    net.eval()
    nodes = leaf(B, N, D).detach()
    with torch.inference_mode():
        found = net(nodes)
    expected = net(nodes).detach()
    assert (found - expected).norm() <= 3e-3 * expected.norm()


@pytest.mark.parametrize("mixed", [False, True])
def test_nt_xent(mixed: bool) -> None:
    one, other = leaf(B, D), leaf(B, D)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed):
        found = nt_xent(one, other, 0.7)
    torch.set_float32_matmul_precision("highest")
    same(found, nt_xent(one, other, 0.7), [one, other])
