"""Files of measured products: what is read, and each fault with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from morphling.errors import ProfileError
from morphling.scenario.gemm_samples import parse_samples, read_samples
from morphling.types import DType

GOOD = "# host: a phone\n# clock: wall time\nm,n,k,dtype,layout,ms\n64,32,16,float32,nn,0.5\n64,32,16,float32,nt,0.6\n"


def test_what_is_read() -> None:
    s = parse_samples(GOOD, "s.csv")
    assert s.facts == {"host": "a phone", "clock": "wall time"}
    assert (s.m.tolist(), s.n.tolist(), s.k.tolist()) == ([64, 64], [32, 32], [16, 16])
    assert (s.lda.tolist(), s.ldb.tolist()) == ([16, 16], [32, 16])
    assert (s.batch.tolist(), s.seconds.tolist()) == ([1, 1], [0.0005, 0.0006])
    assert (s.a_transposed.tolist(), s.b_transposed.tolist()) == ([False, False], [False, True])
    assert s.dtype.tolist() == [DType.FLOAT32] * 2


def test_columns_may_come_in_any_order_and_rounds_are_joined() -> None:
    text = "ms,batch,layout,lda,ldb,dtype,k,n,m\n2,4,tt,70,16,float16,16,32,64\n1.5,4,tt,70,16,float16,16,32,64\n"
    s = parse_samples(text, "s.csv")
    assert (len(s), s.rounds[0], s.seconds[0], s.lda[0], s.ldb[0], s.batch[0]) == (1, 2, 0.0015, 70, 16, 4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m,n,k,dtype,layout,ms", "m,n,k,dtype,layout,msec", "s.csv:3: unknown column 'msec', did you mean 'ms'?"),
        (
            "m,n,k,dtype,layout,ms",
            "m,n,k,dtype,layout",
            "s.csv:3: missing column 'ms'; a header is needed: m,n,k,dtype",
        ),
        ("m,n,k,dtype,layout,ms", "m,n,k,dtype,ms,ms", "s.csv:3: column 'ms' is there twice"),
        ("64,32,16,float32,nn,0.5", "64,32,16,float32,0.5", "s.csv:4: 6 values are needed"),
        (
            "64,32,16,float32,nn",
            "64,0,16,float32,nn",
            "s.csv:4: n: a whole number from 1 to 2147483647 is needed, found '0'",
        ),
        ("64,32,16,float32,nn", "6.4,32,16,float32,nn", "s.csv:4: m: a whole number from 1"),
        (
            "64,32,16,float32,nn",
            "64,32,16,float23,nn",
            "s.csv:4: dtype: 'float23' is not a number format, did you mean 'fl",
        ),
        ("64,32,16,float32,nn", "64,32,16,float32,N", "s.csv:4: layout: must be one of nn, nt, tn, tt"),
        ("nt,0.6", "nt,0", "s.csv:5: ms: a finite number above zero is needed, found '0'"),
        ("nt,0.6", "nt,-1", "s.csv:5: ms: a finite number above zero is needed, found '-1'"),
        ("nt,0.6", "nt,nan", "s.csv:5: ms: a finite number above zero is needed, found 'nan'"),
        ("nt,0.6", "nt,fast", "s.csv:5: ms: a finite number above zero is needed, found 'fast'"),
        ("64,32,16,float32,nn,0.5\n64,32,16,float32,nt,0.6\n", "", "s.csv:3: no samples after the header"),
    ],
)
def test_each_fault_names_its_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ProfileError) as caught:
        parse_samples(GOOD.replace(old, new), "s.csv")
    assert message in str(caught.value)


def test_a_stride_shorter_than_a_row_is_refused() -> None:
    text = "m,n,k,dtype,layout,ms,lda,ldb\n64,32,16,float32,nt,1,16,15\n64,32,16,float32,tn,1,63,32\n"
    with pytest.raises(ProfileError) as caught:
        parse_samples(text, "s.csv")
    assert str(caught.value).splitlines() == [
        "s.csv:2: ldb: 15 is shorter than a stored row of B (transposed: 16 elements)",
        "s.csv:3: lda: 63 is shorter than a stored row of A (transposed: 64 elements)",
    ]


def test_many_faults_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("m,n,k,dtype,layout,ms\n" + "1,1,1,float32,nn,0\n" * 30)
    with pytest.raises(ProfileError) as caught:
        read_samples(path)
    assert len(str(caught.value).splitlines()) == 21
    assert str(caught.value).endswith("and 10 more lines")
    with pytest.raises(ProfileError, match="no samples; a header is needed"):
        parse_samples("# nothing\n", "s.csv")
    with pytest.raises(ProfileError, match="cannot be read"):
        read_samples(tmp_path / "none.csv")
