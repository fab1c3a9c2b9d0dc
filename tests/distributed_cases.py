"""What the ranks do in test_distributed.py: many cases in one group of processes."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import torch

from exact_caches import contiguous, fill
from kvlib.plan import OutOfBlocks
from kvlib.tensors import seen_attention
from kvlib.tensors.distributed import PeerLost, RanksDisagree
from kvlib.tensors.generate import generate
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.process_group import joined
from kvlib.tensors.step import NoCache
from kvlib.tensors.transfer import receive_sequence, send_sequence
from kvlib.tensors.workers import SHARDED, prefill_then_decode

A, B = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9], [2, 7, 1, 8]
CASES = [((6, 3), chunks) for chunks in ([13], [1] * 13, [2, 11])]
CASES += [(heads, [6, 1, 6]) for heads in ((6, 3), (6, 2), (3, 1))]


def model_with(heads, num_layers=2):
    sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 40, "head_dim": 8}
    num_q, num_kv = heads
    config = LlamaConfig(
        **sizes,
        num_layers=num_layers,
        num_q_heads=num_q,
        num_kv_heads=num_kv,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    return Llama.random(config, seed=1)


def sharded(ranks, by, model, num_blocks=16, block_size=2, **options):
    """A cache whose every slot holds NaN until it is written."""
    options = {"dtype": model.dtype, **options}
    cache = SHARDED[by](model.kv_shape, num_blocks, block_size, ranks=ranks, **options)
    fill(cache.store, float("nan"))
    return cache


def forward(model, cache, new, **options):
    tokens = torch.tensor([t for ts in new.values() for t in ts])
    with cache.step(new) as plan:
        return model(tokens, cache, plan, **options)


def whole(model, tokens):
    cache = NoCache()
    return forward(model, cache, {"x": tokens}, all_logits=True)


def error(a, b):
    return float((a - b).abs().max()) if torch.isfinite(a).all() else float("inf")


def chunked(ranks, by, heads, chunks, way=None):
    model = model_with(heads)
    cache = sharded(ranks, by, model, way=way)
    cache.add("a")
    logits, start = [], 0
    for size in chunks:
        logits.append(forward(model, cache, {"a": A[start : start + size]}, all_logits=True))
        start += size
    cache.check()
    return error(torch.cat(logits), whole(model, A))


def ragged(ranks, by):
    """Long, short and empty in one batch; of "c" only rank 0 has anything, of "d" nobody."""
    model = model_with((6, 3))
    cache = sharded(ranks, by, model)
    for seq_id in "abcd":
        cache.add(seq_id)
    forward(model, cache, {"a": A[:6], "c": A[:1]})
    last = forward(model, cache, {"d": [], "b": B, "c": A[1:2], "a": A[6:]})
    cache.check()
    right = [whole(model, tokens)[-1] for tokens in (B, A[:2], A)]
    return max(error(mine, each) for mine, each in zip(last[1:], right, strict=True))


def nobody_new(ranks, by):
    """A step without a single new token: parts without a number."""
    cache = sharded(ranks, by, model_with((6, 3)))
    cache.add("a")
    with cache.step({"a": []}) as plan:
        return tuple(cache.attend(0, torch.zeros(0, 6, 8), plan).shape)


def branched(ranks, by):
    """Fork, go back, continue another's text: copies on each rank of what lies there."""
    model = model_with((6, 3))
    cache = sharded(ranks, by, model, block_size=3)
    cache.add("a")
    forward(model, cache, {"a": A[:8]})
    cache.fork("a", "b")
    forward(model, cache, {"a": A[8:10], "b": B[:1]})
    cache.truncate("b", 5)
    cache.add("c")
    forward(model, cache, {"c": B[:3]})
    cache.reorder({"c": "a", "a": "a"})
    last = forward(model, cache, {"a": A[10:], "b": B, "c": B[:2]})
    cache.check()
    cache.free("a")
    cache.check()
    texts = (A, A[:5] + B, A[:10] + B[:2])
    return max(error(mine, whole(model, text)[-1]) for mine, text in zip(last, texts, strict=True))


def texts(ranks, by):
    model = model_with((6, 3))
    cache = sharded(ranks, by, model, num_blocks=20)
    sharded_run = generate(model, A, 12, cache=cache)
    return sharded_run.agrees_with(generate(model, A, 12)), len(set(sharded_run.tokens))


def half_precision(ranks, by):
    model = model_with((6, 3)).to(torch.bfloat16)
    cache = sharded(ranks, by, model)
    cache.add("a")
    right = whole(model, A)
    off = error(forward(model, cache, {"a": A}, all_logits=True), right)
    return cache.store.dtype == torch.bfloat16 and off < 0.02 * float(right.abs().max())


def counted(ranks, by):
    """Bytes at rest, and bytes that left this rank in one step of five tokens after the first."""
    model = model_with((6, 3))
    cache = sharded(ranks, by, model)
    cache.add("a")
    forward(model, cache, {"a": A[:2]})
    sent, counters = ranks.sent_bytes, cache.counters.snapshot()
    forward(model, cache, {"a": A[2:7]})
    work = cache.counters.snapshot().since(counters)
    return cache.nbytes, ranks.sent_bytes - sent, work.bytes_written, work.tokens_forwarded


@contextmanager
def noting(said):
    try:
        yield
        said.append("nothing")
    except Exception as raised:
        said.append(f"{type(raised).__name__}: {raised}")


def disagreements(ranks, by):
    """Each rank brings something else; the group goes on after each error."""
    model, said = model_with((6, 3)), []
    mine = dict.fromkeys(range(ranks.size), torch.float32) | {1: torch.bfloat16}
    with noting(said):
        sharded(ranks, by, model, dtype=mine[ranks.rank])
    with noting(said):
        sharded(ranks, by, model_with((6, 3), num_layers=1 + ranks.rank))
    with noting(said):
        sharded(ranks, ["heads", "tokens"][ranks.rank % 2], model)
    cache = sharded(ranks, by, model, num_blocks=3)
    cache.add("a")
    with noting(said):
        forward(model_with((3 + 3 * (ranks.rank == 0), 3)), cache, {"a": A[:2]})
    forward(model, cache, {"a": A[:2]})
    with noting(said):
        forward(model, cache, {"a": [ranks.rank]})
    with noting(said):
        forward(model, cache, {"a": A * 4})  # too long on every rank: no disagreement
    with noting(said):
        forward(model, cache, {"a": A * 4 if ranks.rank == 0 else A[:1]})
    cache.check()
    last = forward(model, cache, {"a": A[2:4]})
    return said, cache.length("a"), error(last[0], whole(model, A[:4])[-1])


def handed_over(ranks):
    """Rank 0 to rank 1, rows to blocks; then what the receiver must refuse."""
    model, said = model_with((6, 3)), []
    shape = model.kv_shape
    if ranks.rank == 0:
        cache = contiguous(shape)
        cache.add("a")
        forward(model, cache, {"a": A})
        with noting(said):
            send_sequence(ranks, 1, cache, "a", A[:-1])
        with noting(said):
            send_sequence(ranks, 0, cache, "a", A)
        sent = send_sequence(ranks, 1, cache, "a", A)
        for _ in range(3):
            with noting(said):
                send_sequence(ranks, 1, cache, "a", A)
        return sent, said, cache.length("a")
    if ranks.rank > 1:
        return None
    cache = PagedKVCache(shape, 9, 2)
    fill(cache.store, float("nan"))
    cache.add("a")
    tokens = receive_sequence(ranks, 0, cache, "a")
    off = error(forward(model, cache, {"a": B}, all_logits=True), whole(model, A + B)[-len(B) :])
    other = model_with((6, 2)).kv_shape
    small = PagedKVCache(shape, 8, 2)
    small.add("x")
    forward(model, small, {"x": A[:5]})
    refusing = (
        PagedKVCache(other, 8, 2),
        PagedKVCache(shape, 8, 2, dtype=torch.bfloat16),
        small,
    )
    for each in refusing:
        each.add("b")
        with noting(said):
            receive_sequence(ranks, 0, each, "b")
        each.check()
        assert each.length("b") == 0
    return list(tokens) == A, off, said


def refused_alone(ranks):
    """Rank 1 has no memory for a step that rank 0 could take."""
    model = model_with((6, 3))
    cache = sharded(ranks, "tokens", model)
    cache.add("a")
    if ranks.rank == 1:

        def no_memory(host):
            raise OutOfBlocks("no memory for the index arrays")

        cache._on_device = no_memory
    try:
        forward(model, cache, {"a": A})
    except RanksDisagree as raised:
        cache.check()
        return str(raised), cache.length("a"), cache.ledger.num_free
    return "taken"


def all_cases(ranks):
    """Everything that a healthy group can do; name to result."""
    results = {}
    for by in SHARDED:
        for heads, chunks in CASES:
            results["chunks", by, heads, len(chunks)] = chunked(ranks, by, heads, chunks)
        results["gather", by] = chunked(ranks, by, (6, 3), [6, 1, 6], way="gather")
        for case in (ragged, nobody_new, branched, texts, half_precision, counted, disagreements):
            results[case.__name__, by] = case(ranks, by)
    keep, seen_attention.CHUNK_TOKENS = seen_attention.CHUNK_TOKENS, 4
    results["short parts"] = chunked(ranks, "tokens", (6, 3), [13], way="gather")
    seen_attention.CHUNK_TOKENS = keep
    results["handed over"] = handed_over(ranks)
    results["listening"] = listening()
    results["refused alone"] = refused_alone(ranks)
    return results


def lost_in_a_step(ranks, folder, by, how):
    """In a group of its own: rank 1 fails in the second layer of the third step."""
    model = model_with((6, 3))
    with joined(Path(folder) / f"{by}-{how}", ranks.rank, 2, timeout_s=2.0) as pair:
        cache = sharded(pair, by, model)
        cache.add("a")
        gather, calls = pair.gather, []

        def failing(part, **channel):
            calls.append(part)
            if pair.rank == 1 and len(calls) == 10:  # 1 for the cache, 1 for queries, 3 each step
                if how == "dies":
                    os._exit(1)
                if how == "breaks off":
                    raise OutOfBlocks("no memory for an output")
                sleep(2.6)
            return gather(part, **channel)

        pair.gather = failing
        text = list(A)
        try:
            while len(text) < len(A) + 6:
                new = text[cache.length("a") :]
                try:
                    logits = forward(model, cache, {"a": new})
                except OutOfBlocks:  # tries again, as if the others had broken off as well
                    logits = forward(model, cache, {"a": new})
                text.append(int(logits[0].argmax()))
        except PeerLost as lost:
            start, kept = monotonic(), cache.length("a")
            cache.check()
            with noting(said := []):
                forward(model, cache, {"a": [1]})
            alone = generate(model, text, len(A) + 6 - len(text))
            right = generate(model, A, 6).tokens
            equal = (*text[len(A) :], *alone.tokens) == right
            return str(lost), kept, said[0], monotonic() - start < 1, equal
    return "nobody was lost"


def lost_peers(ranks, folder):
    """Silence, for both ways to cut; the death comes last, for it ends the process."""
    torch.distributed.destroy_process_group()
    results = {by: lost_in_a_step(ranks, folder, by, "sleeps") for by in SHARDED}
    results["breaks off"] = lost_in_a_step(ranks, folder, "heads", "breaks off")
    results["transfer"] = broken_off_transfer(ranks, folder)
    results["dies"] = lost_in_a_step(ranks, folder, "tokens", "dies")
    return results


def broken_off_transfer(ranks, folder):
    """Rank 0 cannot write the second layer; what it does not receive is no answer to anything."""
    model = model_with((6, 3))
    with joined(Path(folder) / "transfer", ranks.rank, 2, timeout_s=2.0) as pair:
        cache = PagedKVCache(model.kv_shape, 9, 2)
        cache.add("a")
        if pair.rank == 1:
            forward(model, cache, {"a": A})
            with noting([]):
                send_sequence(pair, 0, cache, "a", A)
            return None
        write = cache.write

        def failing(layer, *args):
            if layer == 1:
                raise MemoryError("no memory for a layer")
            write(layer, *args)

        cache.write = failing
        with noting(said := []):
            receive_sequence(pair, 1, cache, "a")
        with noting(said):
            receive_sequence(pair, 1, cache, "a")
        cache.check()
        return said, cache.length("a"), cache.ledger.num_free


def listening():
    """Addresses that this process can be called at, as Linux writes them; None elsewhere."""
    files = Path("/proc/self/fd")
    if not files.is_dir():
        return None
    mine, found = set(), set()
    for each in os.listdir(files):
        with suppress(OSError):  # the one that lists
            mine.add(os.readlink(files / each))
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
                found.add(words[1].split(":")[0])
    return found


def sleeps(ranks, seconds):
    sleep(seconds)


class PickledOnce:
    """Goes into one process, and fails on its way into the second."""

    def __init__(self):
        self.times = 0

    def __reduce__(self):
        self.times += 1
        if self.times > 1:
            raise ValueError("pickled a second time")
        return (int, (60,))


def failing_transfers(ranks, prompt, num_new):
    """First a flipped bit, after which the group goes on; then a death."""
    send = ranks.send
    damaged = prefill_then_decode(ranks, "tiny", prompt, num_new, "damages")
    ranks.send = send
    return damaged, prefill_then_decode(ranks, "tiny", prompt, num_new, "dies")
