"""Blocks of codes: each in its place, in its side's format; what no block takes is refused."""

import pytest
import torch

from kvlib.precision import Precision
from kvlib.sizes import KVShape
from kvlib.tensors import code_store
from kvlib.tensors.code_store import CodeStore

SHAPE = KVShape(num_layers=3, num_kv_heads=2, head_dim=4)
FORMATS = (Precision(8, scale_dtype="float32"), Precision(4))


def made(num_blocks=5, **options):
    """Blocks of two tokens; every byte says 7 before anything is written."""
    store = CodeStore(SHAPE, num_blocks, 2, FORMATS, **options)
    for side in store.sides:
        side.fill_(7)
    return store


def blocks(*fills, layers=()):
    """Blocks in which all numbers are equal, so that every format keeps them exactly."""
    return (
        torch.tensor(fills, dtype=torch.float32).reshape(-1, 1, 1, 1).expand(*layers, -1, 2, 2, 4)
    )


def test_sizes_follow_the_formats():
    """A row of four: 4 bytes of codes, and 2; a scale and a minimum of 4 bytes each, and of 2."""
    store = made()
    assert [side.shape[3] for side in store.sides] == [2 * (4 + 8), 2 * (2 + 4)]
    assert store.block_bytes == 2 * (24 + 12)
    assert store.nbytes == 3 * 5 * store.block_bytes
    assert (store.num_blocks, store.block_size, store.head_dim) == (5, 2, 4)


def test_large_pages_are_asked_for_both_sides(monkeypatch):
    asked = []
    monkeypatch.setattr(code_store, "ask_for_huge_pages", asked.append)
    assert [id(side) for side in made().sides] == [id(each) for each in asked]


@pytest.mark.parametrize("side, size", [(0, 24), (1, 12)])
def test_a_block_goes_into_its_place_and_into_no_other(side, size):
    store = made()
    assert store.put(side, 1, [3, 0], blocks(5, 6)) == 2 * 2 * size
    assert torch.equal(store.get(side, 1, [0, 3]), blocks(6, 5))
    written = (store.sides[side] != 7).any(-1)
    assert written.nonzero()[:, :2].unique(dim=0).tolist() == [[1, 0], [1, 3]]
    assert (store.sides[1 - side] == 7).all()


def test_several_layers_go_in_and_out_at_once():
    store = made()
    x = blocks(1, 2, layers=(2,)).clone()
    x[1] += 10
    store.put(1, slice(1, 3), [4, 2], x)
    assert torch.equal(store.get(1, slice(1, 3), [4, 2]), x)
    assert torch.equal(store.get(1, 2, [2]), blocks(12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_back_has_the_stores_dtype(dtype):
    store = made(dtype=dtype)
    store.put(0, 0, [1], blocks(3).to(dtype))
    assert store.get(0, 0, [1]).dtype == dtype and (store.get(0, 0, [1]) == 3).all()


def spoil(store, **changes):
    k, v = store.sides
    store.sides = (changes.get("k", lambda x: x)(k), changes.get("v", lambda x: x)(v))
    if changes.get("shared"):
        store.sides = (k, k[..., :12])


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"k": lambda k: k.to(torch.int16)}, "codes of k are torch.int16, and no bytes"),
        ({"v": lambda v: v.float()}, "codes of v are torch.float32, and no bytes"),
        ({"k": lambda k: k[..., 1:]}, "k: 23 bytes a block, not 24"),
        ({"v": lambda v: v.repeat(1, 1, 1, 2)}, "v: 24 bytes a block, not 12"),
        ({"k": lambda k: k[1:]}, "codes of k"),
        ({"v": lambda v: v[:, 1:]}, "codes of k"),
        ({"v": lambda v: v[:, :, 1:]}, "codes of k"),
        ({"shared": True}, "codes of keys and values share their bytes"),
    ],
)
def test_a_check_finds_what_is_spoilt(changes, named):
    store = made()
    store.check()
    spoil(store, **changes)
    with pytest.raises(AssertionError, match=named):
        store.check()


def test_sizes_are_read_off_the_keys():
    """That values have as many of everything, `check` proves."""
    store = made()
    spoil(store, v=lambda v: v[1:, 1:, 1:])
    assert store.num_blocks == 5 and store.block_bytes == store.nbytes // (3 * 5)
    store.refuse(RIGHT, RIGHT, 3)


def test_a_side_without_a_format_is_not_passed_over():
    store = made()
    store.formats = store.formats[:1]
    for call in (store.check, lambda: store.refuse(RIGHT, RIGHT, 3)):
        with pytest.raises(ValueError):
            call()


def test_a_store_without_bytes_is_sound():
    made(device="meta").check()


RIGHT = torch.zeros(3, 2, 4)


@pytest.mark.parametrize("name, at", [("k", 0), ("v", 1)])
@pytest.mark.parametrize(
    "wrong", [RIGHT[:2], RIGHT[:, :1], RIGHT[..., :3], RIGHT[None], RIGHT.double()]
)
def test_what_has_another_shape_or_dtype_is_refused(name, at, wrong):
    sides = [RIGHT, RIGHT]
    sides[at] = wrong
    with pytest.raises(ValueError, match=f"^{name} must be "):
        made().refuse(*sides, 3)


def test_values_are_looked_at_where_there_is_no_key():
    with pytest.raises(ValueError, match=r"^v must be "):
        made().refuse(RIGHT[:0], RIGHT, 0)


def test_elsewhere_than_on_the_cpu_the_device_looks_at_both_sides(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "_assert_async", asked.append)
    made(device="meta").refuse(RIGHT.to("meta"), RIGHT.to("meta"), 3)
    assert [(each.device.type, each.dtype) for each in asked] == [("meta", torch.bool)] * 2
    made().refuse(RIGHT, RIGHT, 3)
    assert len(asked) == 2


@pytest.mark.parametrize("sign", [1, -1])
def test_each_side_takes_what_its_own_format_can_hold(sign):
    """Values have scales of float16, keys of float32."""
    store, most = made(), sign * FORMATS[1].largest
    x = RIGHT.clone()
    x[2, 1, 3] = most
    store.refuse(x, x, 3)
    x[2, 1, 3] = 1.001 * most
    store.refuse(x, RIGHT, 3)
    with pytest.raises(ValueError, match=r"^v must be finite and within 65504"):
        store.refuse(x, x, 3)
    store.refuse(RIGHT[:0], RIGHT[:0], 0)
    for strange in (torch.nan, torch.inf):
        x[2, 1, 3] = strange
        with pytest.raises(ValueError, match=r"^k must be finite"):
            store.refuse(x, RIGHT, 3)
        with pytest.raises(ValueError, match=r"^v must be finite"):
            store.refuse(RIGHT, x, 3)


def test_a_limit_is_not_rounded_up_to_the_numbers_type():
    """In bfloat16 the number after 65,280 is 65,536, to which 65,504 would be rounded."""
    store = made(dtype=torch.bfloat16)
    below, above = (torch.full((1, 2, 4), x).bfloat16() for x in (65_280.0, 65_536.0))
    store.refuse(below, below, 1)
    with pytest.raises(ValueError, match=r"^v must be finite and within 65504"):
        store.refuse(above, above, 1)
