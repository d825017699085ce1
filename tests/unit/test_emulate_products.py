"""Products as tiles: the same numbers as whole, gradients included, and a plan with a hole is caught."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.emulate.tiles import ProductShape, Tiles, inner_split, row_split, whole
from morphling.errors import PlanError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'morphling[live]'")

from morphling.emulate.interception import Interception  # noqa: E402
from morphling.emulate.products import Cut, Threads, numerics_error, tolerance  # noqa: E402


def ragged(shape: ProductShape) -> Tiles:
    """Three bands: one whole, one in two pieces, one in three of which the first is in two partial sums."""
    _, m, n, k = shape
    r, c, i = (0, m // 3, m // 2, m), (0, n // 4, n // 2, n), k // 2
    cells = [(r[0], r[1], 0, n, 0, k), (r[1], r[2], 0, c[2], 0, k), (r[1], r[2], c[2], n, 0, k)]
    cells += [(r[2], m, 0, c[1], 0, i), (r[2], m, 0, c[1], i, k), (r[2], m, c[1], c[2], 0, k), (r[2], m, c[2], n, 0, k)]
    cells = [x for x in cells if x[0] < x[1] and x[2] < x[3] and x[4] < x[5]]
    columns = np.array(cells * shape.batch, np.int64).T
    product = np.repeat(np.arange(shape.batch), len(cells))
    return Tiles(shape, np.arange(len(product)), product, *columns)


class Ragged:
    """Computes every product as ragged tiles."""

    def __init__(self):
        self.seen = []

    def product(self, p):
        tiles = ragged(p.shape)
        tiles.check("ragged")
        self.seen.append(p.name)
        return Cut(tiles).run(p.a, p.b, p.bias, beta=p.beta, alpha=p.alpha, poison=True)

    def central(self, name, flops, dtype):
        self.seen.append(f"central {name}")


@pytest.fixture
def float64_counts(monkeypatch):
    from morphling.emulate import interception
    from morphling.types import DType

    monkeypatch.setitem(interception.DTYPES, torch.float64, DType.FLOAT32)


SHAPES = [ProductShape(1, 7, 9, 5), ProductShape(3, 5, 4, 6), ProductShape(1, 64, 32, 48), ProductShape(1, 2, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("split", [ragged, "rows", "inner", "whole"])
def test_tiles_cover_and_give_the_product(shape, split):
    devices, shares = np.arange(4), np.array([1, 2, 3, 1])
    made = {
        "rows": lambda: row_split(shape, devices, shares),
        "inner": lambda: inner_split(shape, devices, shares),
        "whole": lambda: whole(shape, 2),
    }.get(split, lambda: ragged(shape))()
    made.check("a plan")
    lead = (shape.batch,) if shape.batch > 1 else ()
    a, b = torch.randn(*lead, shape.m, shape.k), torch.randn(*lead, shape.k, shape.n)
    out = Cut(made).run(a, b, poison=True)
    assert numerics_error(out, a @ b) < tolerance(torch.float32, shape.k)
    bias = torch.randn(shape.n)
    out = Cut(made).run(a, b, bias.expand(*lead, shape.m, shape.n), beta=0.5, alpha=-2, poison=True)
    assert numerics_error(out, 0.5 * bias - 2 * (a @ b)) < tolerance(torch.float32, shape.k)


def test_threads_give_the_same_bits():
    shape = ProductShape(1, 256, 192, 128)
    a, b = torch.randn(256, 128), torch.randn(128, 192)
    threads = Threads()
    threads.count = lambda: 3
    cut = Cut(ragged(shape), threads)
    assert torch.equal(cut.run(a, b, poison=True), Cut(ragged(shape)).run(a, b))
    assert len(cut.chunks[3]) == 3
    with torch.inference_mode():  # which the threads do not know of
        inside = cut.run(a, b, poison=True)
    assert torch.allclose(inside, a @ b, atol=1e-4)
    c = torch.randn(128, 192, requires_grad=True)
    assert cut.run(a, c.detach()).requires_grad is False
    threads.close()


def test_out_of_memory_says_for_what(monkeypatch):
    from morphling.emulate import products
    from morphling.errors import RunError

    shape = ProductShape(1, 8, 6, 4)
    cut = Cut(row_split(shape, np.arange(2), np.array([1, 1])))

    def full(*args, **kwargs):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(products.torch, "mm", full)
    with pytest.raises(
        RunError, match=r"no memory for the tiles of columns 0 to 6, rows 0 to 8 of 8 x 4 x 6 \(192 bytes"
    ):
        cut.run(torch.ones(8, 4), torch.ones(4, 6))
    monkeypatch.setattr(products.torch, "empty", full)
    with pytest.raises(RunError, match=r"no memory for the result of 8 x 4 x 6 \(192 bytes\)"):
        cut.run(torch.ones(8, 4), torch.ones(4, 6))


def test_a_hole_and_a_doubled_tile_are_refused():
    shape = ProductShape(2, 8, 6, 4)
    good = row_split(shape, np.arange(2), np.array([1, 1]))
    columns = {name: getattr(good, name) for name in good.__dataclass_fields__}
    keep = np.array([0, 1, 2])
    hole = Tiles(shape, **{n: c[keep] for n, c in columns.items() if n != "shape"})
    with pytest.raises(PlanError, match=r"product 1 of 2 x 8 x 4 x 6 misses rows 4 to 8, columns 0 to 6, inner 0 to 4"):
        hole.check("a plan")
    twice = Tiles(shape, **{n: np.append(c, c[:1]) for n, c in columns.items() if n != "shape"})
    with pytest.raises(PlanError, match="is computed 2 times"):
        twice.check("a plan")
    # the same hole in the numbers: what was never written is not taken for a result
    a, b = torch.ones(2, 8, 4), torch.ones(2, 4, 6)
    assert numerics_error(Cut(hole).run(a, b, poison=True), a @ b) == float("inf")


def test_shares_of_rows_are_whole_and_by_share():
    tiles = row_split(ProductShape(1, 10, 3, 2), np.array([4, 7, 9]), np.array([1, 0, 3]))
    assert tiles.device.tolist() == [4, 9]
    assert tiles.row0.tolist() == [0, 2]
    assert tiles.row1.tolist() == [2, 10]


@pytest.mark.usefixtures("float64_counts")
@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (torch.mm, [(7, 5), (5, 9)]),
        (torch.addmm, [(9,), (7, 5), (5, 9)]),
        (lambda c, a, b: torch.addmm(c, a, b, beta=0.3, alpha=1.7), [(7, 9), (7, 5), (5, 9)]),
        (torch.bmm, [(3, 4, 5), (3, 5, 6)]),
        (lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5), [(3, 4, 6), (3, 4, 5), (3, 5, 6)]),
        (torch.nn.functional.linear, [(2, 3, 5), (4, 5), (4,)]),
        (lambda a, b: torch.mm(a.T, b), [(5, 7), (5, 9)]),
    ],
    ids=["mm", "addmm", "addmm scaled", "bmm", "baddbmm", "linear", "transposed"],
)
def test_gradients_through_ragged_tiles(call, shapes):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator, requires_grad=True) for s in shapes]
    computer = Ragged()
    with Interception(computer):
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)
    assert computer.seen


def seen_by(run):
    computer, warned = Ragged(), []
    mode = Interception(computer, warned.append)
    with mode:
        out = run()
    return out, computer.seen, mode, warned


def test_out_and_in_place_variants():
    a, b, c = torch.randn(7, 5), torch.randn(5, 9), torch.randn(7, 9)
    want, plus = a @ b, c + a @ b

    def run():
        out, wrong = torch.empty(7, 9), torch.empty(0)
        torch.mm(a, b, out=out)
        torch.mm(a, b, out=wrong)
        added = torch.addmm(c, a, b, out=torch.empty(7, 9))
        square = torch.randn(5, 5)
        twice = square @ square
        torch.mm(square, square, out=square)  # it reads what it writes
        return out, wrong, added, c.clone().addmm_(a, b), square, twice

    (out, wrong, added, onto, square, twice), seen, _, _ = seen_by(run)
    for have, expected in ((out, want), (wrong, want), (added, plus), (onto, plus), (square, twice)):
        assert torch.allclose(have, expected, atol=1e-5)
    assert seen == ["mm", "mm", "addmm", "mm", "mm", "addmm_"]


def test_inference_mode_is_taken_apart():
    layer, x = torch.nn.Linear(5, 9), torch.randn(2, 3, 5)

    def run():
        with torch.inference_mode():
            return layer(x), torch.matmul(x, x.transpose(1, 2))

    (y, z), seen, _, _ = seen_by(run)
    assert torch.allclose(y, layer(x), atol=1e-6)
    assert torch.allclose(z, x @ x.transpose(1, 2), atol=1e-6)
    assert seen == ["addmm", "bmm"]


def test_what_is_no_plain_product_is_the_coordinators():
    def run():
        torch.mv(torch.randn(4, 6), torch.randn(6))
        torch.nn.functional.conv2d(torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))

    _, seen, mode, warned = seen_by(run)
    assert seen == ["central mv", "central convolution"]
    report = mode.coverage.report()
    # 3 channels x 3 x 3 positions, each a sum of 2 x 3 x 3 products
    assert report["by_operation"]["central"] == {"mv": 2 * 4 * 6, "convolution": 2 * 27 * 18}
    assert report["coverage"] == 0
    assert len(warned) == 2


def test_a_dtype_without_a_rate_is_said_and_not_covered():
    a = torch.randn(4, 4, dtype=torch.float64)
    out, seen, mode, warned = seen_by(lambda: a @ a)
    assert torch.equal(out, a @ a)
    assert seen == []
    assert mode.coverage.report()["flops"]["uncounted"] == 128
    assert "float64" in warned[0]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_products_are_said_and_empty_ones_are_nothing():
    a = torch.eye(4)

    def run():
        torch.zeros(0, 4) @ a
        return torch.mm(a.to_sparse(), a)

    out, seen, mode, warned = seen_by(run)
    assert torch.equal(out, a)
    assert seen == []
    assert mode.coverage.report()["flops"]["uncounted"] == 128
    assert "other than ordinary dense matrices" in warned[0]


def test_wrong_shapes_keep_the_words_of_torch():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        seen_by(lambda: torch.mm(torch.randn(2, 3), torch.randn(4, 5)))
    with pytest.raises(RuntimeError, match="same dtype"):
        seen_by(lambda: torch.mm(torch.randn(2, 3), torch.randn(3, 5).half()))


def test_autocast_and_checkpointing():
    from torch.utils.checkpoint import checkpoint

    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            checkpoint(layer, x, use_reentrant=True).sum().backward()

    _, seen, mode, _ = seen_by(run)
    assert seen == ["addmm", "addmm", "mm", "mm"]  # forward, forward again, dX and dW
    assert mode.coverage.report()["coverage"] == 1


def test_the_phases_are_told_apart():
    from morphling.types import Phase

    phases = []

    class Looks(Ragged):
        def product(self, p):
            phases.append(p.phase)
            return super().product(p)

    layer, x = torch.nn.Linear(6, 5), torch.randn(4, 6, requires_grad=True)
    with Interception(Looks()):
        (layer(x) ** 2).sum().backward()
    assert sorted(phases) == [Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT]
