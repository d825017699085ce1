"""Lists of products in a task table: what is taken, carried along and refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from morphling.interfaces.products import BatchedProduct, Products
from morphling.interfaces.tasks import TaskTable
from morphling.types import DType, Kind

ONE = Products([(2, 3, 4)])  # 48 FLOPs; 8 + 12 + 6 elements
TWO = Products([(2, 3, 4, 5, 0.5), (1, 1, 1)])  # 5 products in half a call: 120 FLOPs, and 2


def table(products, lists=(ONE, TWO), flops=1000.0, **more):
    device = np.arange(len(np.atleast_1d(products)))
    return TaskTable.build(device=device, flops=flops, products=products, product_lists=lists, **more)


def test_sums_by_hand():
    assert (ONE.flops, ONE.elements) == (48.0, 26.0)
    assert (TWO.flops, TWO.elements) == (122.0, 26 * 2.5 + 3)
    assert Products([(2, 3, 4)], 7.0).elements == 7.0
    assert TWO.entries[1] == BatchedProduct(1, 1, 1, 1, 1.0)


def test_equal_lists_are_one_object_out_of_a_pickle_too():
    assert Products([(2, 3, 4, 1, 1.0)]) is ONE
    assert Products([(2, 3, 4)], 7.0) is not ONE
    assert pickle.loads(pickle.dumps(TWO)) is TWO
    with pytest.raises(AttributeError, match="cannot be changed"):
        ONE.flops = 1.0


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "at least one"),
        ([(0, 3, 4)], "m: a whole number from 1 on is needed, not 0"),
        ([(2, 3.5, 4)], "n: a whole number"),
        ([(2, 3, float("nan"))], "k: a whole number"),
        ([(float("inf"), 3, 4)], "m: a whole number"),
        ([(2, 3, 4, -1)], "batch: a whole number"),
        ([(2, 3, 4, 1, 0.0)], "calls: a number above 0"),
        ([(2, 3, 4, 1, float("nan"))], "calls: a number above 0"),
    ],
)
def test_wrong_lists_are_refused(entries, said):
    with pytest.raises(ValueError, match=said):
        Products(entries)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: table([2]), r"column products: 2 is none of 2 lists"),
        (lambda: table([-2]), r"column products: -2 is none of 2 lists"),
        (lambda: table([0], lists=()), r"column products: 0 is none of 0 lists"),
        (lambda: table([0.5]), r"column products: 0.5 is none"),
        (lambda: table([-1, 1], flops=121.0), r"the products of row 1 are 122 FLOPs, the row has 121"),
        (lambda: table([0], m=2, n=3, k=4), r"row 0 has a shape of its own"),
        (lambda: table([-1, 0], kind=[Kind.GEMM, Kind.OPTIMIZER]), r"row 1 .* no GEMM row"),
    ],
)
def test_rows_that_cannot_consist_of_their_list_are_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()


def test_tables_are_cut_and_joined_with_their_lists():
    plain = TaskTable.build(device=[0, 1], m=8, n=8, k=8)
    other = table([1, 0, -1], lists=(TWO, Products([(9, 9, 9, 1, 0.5)])))
    joint = TaskTable.concat([plain, table([0, 1, -1]), other, plain])
    named = [None if i < 0 else joint.product_lists[i] for i in joint.products.tolist()]
    third = Products([(9, 9, 9, 1, 0.5)])
    assert named == [None, None, ONE, TWO, None, third, TWO, None, None, None]
    assert joint.product_lists == (ONE, TWO, third)
    taken = joint.take([6, 0, 2])
    assert [taken.product_lists[i] if i >= 0 else None for i in taken.products.tolist()] == [TWO, None, ONE]
    again = pickle.loads(pickle.dumps(joint))
    assert (again.products.tolist(), again.product_lists) == (joint.products.tolist(), joint.product_lists)


def test_tables_without_lists_hold_and_hash_nothing_of_them():
    # the digest of this table as it was before rows could name products
    plain = TaskTable.build(device=[0, 1], m=[8, 9], n=8, k=8, dtype=DType.FLOAT32, dependencies=[[], [0]])
    assert plain.digest() == "9c18b18613877e9230e8b1bc8b43d7c9e6106131519702e52018ffdf6ff7a1ee"
    assert plain.products.strides == (0,)
    assert TaskTable.concat([plain, plain]).take([1, 2]).products.tolist() == [-1, -1]
    assert TaskTable.concat([plain, plain]).products.strides == (0,)
    assert table([-1]).digest() == table([-1], lists=()).digest()
    named = table([0])
    assert len({named.digest(), replace(named, product_lists=(TWO,)).digest(), table([-1]).digest()}) == 3
