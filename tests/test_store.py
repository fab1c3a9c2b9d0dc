"""The store: what is written to a slot is read from it, and nothing else changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlib.sizes import KVShape
from kvlib.tensors.store import KVStore


def store(device="cpu", **changes):
    sizes = {"num_layers": 2, "num_blocks": 3, "block_size": 4, "num_kv_heads": 2, "head_dim": 3}
    return KVStore(**{**sizes, **changes}, device=device)


def numbered(num_tokens, device="cpu"):
    k = torch.arange(num_tokens * 6.0, device=device).reshape(num_tokens, 2, 3) + 1
    return k, -k


@given(st.lists(st.integers(0, 11), unique=True))
def test_slots_read_back_what_was_written_and_others_keep_theirs(slots):
    s = store()
    s.keys.fill_(99.0)
    s.values.fill_(99.0)
    k, v = numbered(len(slots))
    where = torch.tensor(slots, dtype=torch.int64)
    s.write(1, where, k, v)
    assert torch.equal(s.read(1, where)[0], k)
    assert torch.equal(s.read(1, where)[1], v)
    others = torch.tensor([x for x in range(12) if x not in slots], dtype=torch.int64)
    assert (s.read(1, others)[0] == 99).all()
    assert (s.keys[0] == 99).all()
    assert (s.values[0] == 99).all()


def test_a_slot_is_block_times_size_plus_offset(device):
    s = store(device)
    k, v = numbered(1, device)
    s.write(0, torch.tensor([4 * 2 + 3], device=device), k, v)
    assert torch.equal(s.keys[0, 2, :, 3], k[0])
    assert torch.equal(s.values[0, 2, :, 3], v[0])


def test_a_view_is_the_block_itself(device):
    s = store(device)
    k, v = numbered(2, device)
    s.write(0, torch.tensor([4, 5], device=device), k, v)
    seen_k, seen_v = s.view(0, 1, 2)
    assert torch.equal(seen_k.transpose(0, 1), k)
    assert torch.equal(seen_v.transpose(0, 1), v)
    assert seen_k.data_ptr() == s.keys[0, 1].data_ptr()


@pytest.mark.parametrize("block, length", [(-1, 1), (3, 1), (0, 5), (0, -1)])
def test_a_view_outside_the_store_is_refused(block, length):
    with pytest.raises(ValueError, match="3 blocks of 4 slots"):
        store().view(0, block, length)


def test_copy_block_copies_all_layers_and_counts_its_bytes():
    s = store()
    s.keys.normal_()
    s.values.normal_()
    before = s.keys.clone()
    assert s.copy_block(0, 2, 3) == 3 * s.bytes_per_token
    assert torch.equal(s.keys[:, 2, :, :3], before[:, 0, :, :3])
    assert torch.equal(s.values[:, 2, :, :3], s.values[:, 0, :, :3])
    assert torch.equal(s.keys[:, 2, :, 3:], before[:, 2, :, 3:])


def test_bytes_are_what_the_sizes_module_says():
    shape = KVShape(num_layers=2, num_kv_heads=2, head_dim=3)
    s = store(dtype=torch.float16)
    assert s.bytes_per_token == shape.bytes_per_token("float16")
    assert s.nbytes == 12 * shape.bytes_per_token("float16")


def test_32_heads_sharing_8_take_4_mib_a_thousand_tokens():
    s = KVStore(1, 1, 1024, 8, 128, dtype=torch.float16, device="meta")
    assert s.nbytes == 4_194_304


@pytest.mark.parametrize("name", ["num_layers", "num_blocks", "block_size", "num_kv_heads"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_sizes_are_positive_integers(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name} must be a(t least 1| whole)"):
        store(**{name: value})


@pytest.mark.parametrize(
    "k",
    [torch.ones(2, 2, 3), torch.ones(1, 3, 3), torch.ones(1, 2, 3, dtype=torch.float16)],
    ids=["tokens", "heads", "dtype"],
)
@pytest.mark.parametrize("side", ["k", "v"])
def test_a_write_that_does_not_fit_changes_nothing(k, side):
    s = store()
    s.keys.zero_()
    s.values.zero_()
    good = torch.ones(1, 2, 3)
    with pytest.raises(ValueError, match=rf"{side} must be \(1, 2, 3\) torch.float32 on cpu"):
        s.write(0, torch.tensor([0]), *((k, good) if side == "k" else (good, k)))
    assert not s.keys.any()
    assert not s.values.any()


@pytest.mark.parametrize(
    "slots, named", [([0, -1], r"\[-1\]"), ([12, 3], r"\[12\]"), ([-13], "-13")]
)
def test_a_slot_outside_the_store_is_refused_by_number_and_nothing_is_written(slots, named):
    """An index of -1 would count from the end and overwrite the last slot without a sound."""
    s = store()
    s.keys.zero_()
    s.values.zero_()
    k, v = numbered(len(slots))
    with pytest.raises(ValueError, match=f"slots are 0 to 11, asked for .*{named}"):
        s.write(0, torch.tensor(slots), k, v)
    with pytest.raises(ValueError, match="slots are 0 to 11"):
        s.read(0, torch.tensor(slots))
    assert not s.keys.any() and not s.values.any()


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_is_not_there_is_refused(layer):
    k, v = numbered(1)
    with pytest.raises(ValueError, match="layers are 0 to 1"):
        store().write(layer, torch.tensor([0]), k, v)
    with pytest.raises(ValueError, match="layers are 0 to 1"):
        store().read(layer, torch.tensor([0]))


@pytest.mark.parametrize(
    "slots",
    [
        torch.tensor([[0]]),
        torch.tensor([0.0]),
        torch.tensor([True]),
        torch.tensor([0], device="meta"),
    ],
)
def test_slots_are_whole_numbers_in_a_row_on_the_stores_device(slots):
    with pytest.raises(ValueError, match=r"slots must be \[T\] torch.int64 on cpu"):
        store().read(0, slots)


@pytest.mark.parametrize("src, dst, n", [(-1, 0, 1), (0, 3, 1), (0, 1, 5), (0, 1, -1)])
def test_a_copy_from_or_to_what_is_not_there_is_refused(src, dst, n):
    s = store()
    s.keys.zero_()
    with pytest.raises(ValueError, match="3 blocks of 4 slots"):
        s.copy_block(src, dst, n)


@pytest.mark.parametrize(
    "q, said",
    [
        (torch.ones(2, 4, 4), r"q must be \[2, Hq, 3\] torch.float32 on cpu, got \(2, 4, 4\)"),
        (torch.ones(3, 4, 3), "q must be"),
        (torch.ones(2, 3), "q must be"),
        (torch.ones(2, 4, 3, 1), "q must be"),
        (torch.ones(2, 4, 3, dtype=torch.float16), "q must be"),
        (torch.ones(2, 4, 3, device="meta"), "q must be"),
        (torch.ones(2, 3, 3), "multiple of KV heads: 3 and 2"),
        (torch.ones(2, 1, 3), "multiple of KV heads: 1 and 2"),
        (torch.ones(2, 0, 3), "multiple of KV heads: 0 and 2"),
    ],
)
def test_queries_that_do_not_fit_are_refused(q, said):
    with pytest.raises(ValueError, match=said):
        store().require_queries(q, 2)


def test_queries_of_whole_groups_are_taken_and_no_token_is_none():
    for num_tokens, heads in ((2, 2), (2, 6), (0, 4)):
        store().require_queries(torch.ones(num_tokens, heads, 3), num_tokens)
    assert store().view(0, 0, 0)[0].shape == (2, 0, 3)
    for layer in (-1, 2):
        with pytest.raises(ValueError, match="layers are 0 to 1"):
            store().view(layer, 0, 1)


def across(s):
    s.keys, s.values = (torch.ones(2, 3, 2, 3, 4).transpose(3, 4) for _ in range(2))


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda s: setattr(s, "values", store(num_blocks=2).values), "keys are"),
        (lambda s: setattr(s, "values", s.values.half()), "keys are"),
        (lambda s: setattr(s, "block_size", 5), "4 slots in a block of 5"),
        (across, "a row of D numbers is no run"),
        (lambda s: setattr(s, "values", s.keys), "keys and values share their bytes"),
    ],
)
def test_a_check_names_what_is_broken(spoil, named):
    s = store()
    s.check()
    store("meta").check()
    spoil(s)
    with pytest.raises(AssertionError, match=named):
        s.check()


def test_checking_slots_never_makes_the_host_wait():
    """On the meta device anything that waits for a value raises."""
    s = store("meta")
    slots, k = torch.empty(2, dtype=torch.int64, device="meta"), torch.empty(2, 2, 3, device="meta")
    s.write(0, slots, k, k)
    assert s.read(0, slots)[0].device.type == "meta"
