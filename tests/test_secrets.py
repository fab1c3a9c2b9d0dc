"""Nothing of a prompt in an error, a name or a log: neither tokens, nor text, nor a plain hash."""

import ast
import os
import stat
import subprocess
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from conftest import small_config
from kvlib.budget_ledger import BudgetLedger
from kvlib.content import TokenContent
from kvlib.engine_request import EngineRequest
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks
from kvlib.radix import RadixTree
from kvlib.request import Request, Workload
from kvlib.rolling_ledger import RollingLedger
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.sharded_ledger import ShardedLedger
from kvlib.sizes import KVShape
from kvlib.tensors.agreement import plan_together
from kvlib.tensors.block_bytes import LostBlock, pack
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.block_names import SALT_BYTES, folder_salt, salted
from kvlib.tensors.block_server import BlockServer
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.engine import Engine
from kvlib.tensors.generate import generate
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.remote_blocks import RemoteBlocks
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tier import Tier
from kvlib.tiers import TierStack

ROOT = Path(__file__).resolve().parents[1]
MARKS = [73313 + 101 * i for i in range(40)]  # nothing else is a number like these
MARKED = {str(token) for token in MARKS}
SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=4)
WORD = "xyzzy-hunter2"


def told(error):
    """All that an error says, and those that it came from."""
    said = []
    while error is not None:
        said += [str(error), repr(error), *map(str, getattr(error, "__notes__", []))]
        error = error.__cause__ or error.__context__
    return " ".join(said)


def gives_away(text, content=None):
    """Which marks, or keys of marks, are in a text."""
    found = [mark for mark in (*MARKED, WORD) if mark in text]
    for i in range(content.num_blocks if content else 0):
        key = content.key(i)
        found += [f"key {i}" for shown in (key.hex()[:8], repr(key)[2:18]) if shown in text]
    return found


@pytest.fixture(scope="module")
def model():
    sizes = {"vocab_size": 80_000, "hidden_size": 8, "intermediate_size": 8, "num_q_heads": 2}
    config = small_config(**sizes, num_kv_heads=1, head_dim=4, max_position_embeddings=64)
    return Llama.random(config, seed=1)


def ledgers():
    yield ContiguousLedger(2, 4)
    yield PagedLedger(2, 2)
    yield RollingLedger(2, 3)
    yield BudgetLedger(2, 4)
    yield ShardedLedger(2, 2, 2)


def caches():
    yield ContiguousKVCache(SHAPE, 2, 4)
    yield PagedKVCache(SHAPE, 2, 2)
    yield SinkWindowKVCache(SHAPE, 2, 1, 2)
    yield QuantizedKVCache(SHAPE, 2, 2, num_seqs=2, way="dequantize")
    yield TieredKVCache(SHAPE, 2, 2, tiers=[(Tier("host", 10_000, 10), HostBlocks())])


def wrong_calls(holder):
    """What a ledger or a cache refuses, with marks where tokens go."""
    holder.add("a")
    holder.add("b")
    plan = holder.plan({"a": MARKS[:2]})
    yield lambda: holder.plan({"a": MARKS[:1]})
    yield lambda: holder.plan({"gone": MARKS[:3]})
    if getattr(holder, "max_seq_len", None):
        yield lambda: holder.plan({"b": MARKS})
    yield lambda: holder.plan({"b": [WORD] * 40, "gone": MARKS})
    yield lambda: holder.free("a")
    holder.abort(plan)
    yield lambda: holder.commit(plan)
    yield lambda: holder.add("a")


def request_calls(model):
    """What an engine, a generation, a scheduler and a memory refuse."""
    engine = Engine(model, num_blocks=4, block_size=4, max_waiting=1)
    yield lambda: engine.submit(MARKS, 99)
    yield lambda: engine.submit([*MARKS[:2], 80_000 + MARKS[3]], 2)
    yield lambda: engine.submit([*MARKS[:2], WORD], 2)
    yield lambda: engine.submit([-MARKS[0]], 2)
    yield lambda: engine.submit(MARKS[:2], 0)
    engine.submit(MARKS[:2], 2)
    yield lambda: engine.submit(MARKS[:2], 2)
    yield lambda: engine.submit(MARKS[:2], 2, deadline_s=-1.0)
    yield lambda: generate(model, [80_000 + MARKS[3]], 2)
    yield lambda: generate(model, [WORD], 2)
    yield lambda: generate(model, MARKS, 60)
    cache = ContiguousKVCache(model.kv_shape, 1, 4)
    yield lambda: generate(model, MARKS[:4], 9, cache=cache)
    scheduler = Scheduler(KVMemory(4, 4, HashIndex))
    asked = Request(0, 0.0, len(MARKS), 1, token_ids=(*MARKS, 1))
    yield lambda: scheduler.add(asked, 0.0, TokenContent(MARKS, 4))
    job = ServedRequest(asked, 0, 0.0, 41, 41, TokenContent(MARKS, 4), num_tokens=40)
    memory = KVMemory(4, 4, HashIndex)
    yield lambda: memory.start(job, 40)
    yield lambda: memory.grow(job, 41)
    yield lambda: memory.stop(job)


def content_calls():
    """What names of content refuse, and indexes of them."""
    yield lambda: TokenContent([*MARKS, WORD], 4)
    yield lambda: TokenContent([MARKS[0], 2**70 + MARKS[1]], 4)
    yield lambda: TokenContent(MARKS, 4).key(99)
    yield lambda: TokenContent(MARKS, 4).block(99)
    for kind in (HashIndex, RadixTree):
        from kvlib.blocks import BlockPool

        pool = BlockPool(8)
        index, content = kind(pool), TokenContent(MARKS[:8], 4)
        blocks = pool.allocate(2)
        index.insert(content, blocks)
        other = TokenContent(MARKS[8:16], 4)
        yield lambda index=index, b=blocks, c=other: index.insert(c, b)
        yield lambda index=index, c=content: index.insert(c, [7])
        yield lambda index=index, c=content, b=blocks: index.insert(c, [*b, *b])
    stack, key = TierStack([Tier("host", 64, 1)], 64), TokenContent(MARKS, 4).key(0)
    yield lambda: stack.load(key)
    yield lambda: stack.pin(key)
    yield lambda: stack.lost(key, 0)


ERRORS = (ValueError, TypeError, LookupError, RuntimeError, OverflowError, OSError)


def raised_by(calls):
    """Makes each call, which has to raise, and returns what the errors say."""
    said = []
    for call in calls:
        with pytest.raises(ERRORS) as e:
            call()
        said.append(told(e.value))
    return said


def test_no_error_says_a_token(model):
    content = TokenContent(MARKS, 4)
    said = []
    for holder in (*ledgers(), *caches()):
        said += raised_by(wrong_calls(holder))
        getattr(holder, "close", lambda: None)()
    said += raised_by(request_calls(model))
    said += raised_by(content_calls())
    assert len(said) > 75
    for text in said:
        assert not gives_away(text, content), text


def test_no_place_of_blocks_says_a_key(tmp_path):
    content, k = TokenContent(MARKS, 4), torch.ones(1, 1, 4, 2)
    key, other = content.key(0), content.key(1)
    files, said = BlockFiles(tmp_path), []
    files.put(key, k, k)
    files.path(key).write_bytes(b"torn")
    said += raised_by([lambda: files.get(key), lambda: files.get(other)])
    files.put(key, k, k)
    os.rename(files.path(key), files.path(other))
    said += raised_by([lambda: files.get(other), lambda: HostBlocks().get(key)])
    with BlockServer(10_000) as server, RemoteBlocks(server.address) as remote:
        remote.put(key, k, k)
        server._blocks[remote.name(other)] = server._blocks[remote.name(key)]
        said += raised_by([lambda: remote.get(other), lambda: remote.get(content.key(2))])
    with RemoteBlocks(server.address, timeout_s=0.2) as remote:
        said += raised_by([lambda: remote.get(key), lambda: remote.put(key, k, k)])
    cache = TieredKVCache(SHAPE, 2, 4, tiers=[(Tier("host", 10_000, 10), HostBlocks())])
    said += raised_by([lambda: cache.lower.fetch(key)])
    cache.lower.stack.store(key)
    with pytest.raises(AssertionError) as error:
        cache.check()
    cache.close()
    for text in (*said, told(error.value)):
        assert not gives_away(text, content), text


def serve(cache, tokens):
    """Writes numbers that have nothing to do with the tokens."""
    cache.add("a", tokens)
    new = tokens[cache.length("a") :]
    x = torch.ones(len(new), 2, 4)
    with cache.step({"a": new}) as plan:
        for layer in range(2):
            cache.write(layer, x, x, plan)
    cache.free("a")
    cache.drain()
    return len(tokens) - len(new)


def tiered(place, block_size=4, **options):
    return TieredKVCache(SHAPE, 16, block_size, tiers=[(Tier("t", 10**6, 1), place)], **options)


def hidden(data, content):
    """What bytes must not contain: tokens, and the beginning of a key, as bytes or letters."""
    tokens = [token.to_bytes(8, "little") for token in MARKS]
    keys = [content.key(i) for i in range(content.num_blocks)]
    hashes = [sha256(b"".join(tokens[4 * i : 4 * i + 4])).digest() for i in range(10)]
    for secret in (*keys, *hashes):
        assert secret[:8] not in data and secret.hex()[:16].encode() not in data
    assert not any(token in data for token in tokens)


def test_files_are_named_for_nobody_else(tmp_path):
    caches = [tiered(BlockFiles(tmp_path / name)) for name in ("one", "two")]
    names = []
    for cache in caches:
        assert serve(cache, MARKS) == 0
        content = cache.content(MARKS)
        files = sorted(cache.lower.places[0].folder.iterdir())
        for path in files:
            hidden(path.name.encode() + path.read_bytes(), content)
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, "others may read it"
        assert not stat.S_IMODE(path.parent.stat().st_mode) & 0o077
        names.append({path.name for path in files} - {"salt"})
    assert len(names[0]) == 10 and not names[0] & names[1], "two folders name a text alike"
    again = tiered(BlockFiles(tmp_path / "one"))
    assert serve(again, MARKS) == 36, "whoever has the folder finds what it had"
    for cache in (*caches, again):
        cache.close()


def test_a_request_over_the_wire_names_nothing():
    with BlockServer(10**6) as server:
        one, two = RemoteBlocks(server.address), RemoteBlocks(server.address, salt=b"s" * 16)
        caches = [tiered(one), tiered(two), tiered(RemoteBlocks(server.address))]
        found = [serve(cache, MARKS) for cache in caches]
        assert found == [0, 0, 36], "another salt shares nothing; the same one does"
        content = caches[0].content(MARKS)
        for name, data in server._blocks.items():
            hidden(name + data, content)
        assert len(server._blocks) == 20
        server.check()
        one.check()
        for cache in caches:
            cache.close()
            cache.lower.places[0].close()


def test_a_salt_that_hides_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 16 bytes, got 0"):
        RemoteBlocks(("127.0.0.1", 1), salt=b"")


def test_names_are_as_long_as_keys_and_differ_as_keys_do():
    salt = b"x" * 32
    for length in (1, 8, 20, 32, 99):
        names = {salted(salt, bytes([i]) * length) for i in range(200)}
        assert len(names) == 200 and {len(name) for name in names} == {max(8, min(length, 32))}


def test_the_first_to_come_draws_a_folders_salt_and_all_have_it(tmp_path):
    code = (
        "import sys, pathlib; from kvlib.tensors.block_names import folder_salt;"
        "print(folder_salt(pathlib.Path(sys.argv[1])).hex())"
    )
    path = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, env=path)
        for _ in range(2)
    ]
    said = {run.communicate()[0].strip() for run in runs}
    assert said == {folder_salt(tmp_path).hex().encode()} and len(said.pop()) == 2 * SALT_BYTES
    assert [path.name for path in tmp_path.iterdir()] == ["salt"]


@pytest.mark.parametrize("data", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_salt_is_one_clear_error(tmp_path, data):
    (tmp_path / "salt").write_bytes(data)
    with pytest.raises(ValueError, match=r"is damaged: a salt has 32 bytes.*delete the folder"):
        BlockFiles(tmp_path)


def test_a_salt_lost_to_a_race_or_a_disk_without_links(tmp_path, monkeypatch):
    first = folder_salt(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert folder_salt(tmp_path) == first, "another process was first"

    def no_links(*_):
        raise OSError(38, "no links here")

    monkeypatch.undo()
    (tmp_path / "salt").unlink()
    monkeypatch.setattr(os, "link", no_links)
    assert folder_salt(tmp_path) == (tmp_path / "salt").read_bytes() != first


class Said:
    """The end of a wire between ranks, with what was said on it."""

    def __init__(self, salt):
        self.salt, self.said = salt, []

    def agree(self, what, mine):
        self.said.append(mine)


def test_ranks_compare_tokens_by_a_hash_that_only_they_can_make():
    notes = []
    for salt in (b"one", b"two", b"one"):
        wire, ledger = Said(salt), PagedLedger(40, 2)
        ledger.add("a")
        plan_together(wire, ledger.plan, ledger.abort, ledger.length, {"a": MARKS})
        notes += wire.said
    assert notes[0] == notes[2] != notes[1]
    plain = sha256(repr([(0, MARKS)]).encode()).hexdigest()
    assert plain[:8] not in notes[0] and not gives_away(notes[0])
    wire = Said(b"one")
    with pytest.raises(KeyError):
        plan_together(wire, ledger.plan, ledger.abort, ledger.length, {"gone": MARKS})
    assert not gives_away(wire.said[0])


def test_what_is_printed_shows_no_token(model):
    engine = Engine(model, num_blocks=64, block_size=4)
    request = engine.submit(MARKS[:9], 2, tenant="t")
    engine.step()
    asked = Request(0, 0.0, 9, 2, token_ids=tuple(MARKS), block_ids=tuple(MARKS))
    content = TokenContent(MARKS, 4)
    job = next(iter(engine.live))
    plan = PagedLedger(64, 2)
    plan.add("a")
    for thing in (
        *(request, asked, job, engine, content, engine.cache, request.cost, engine.memory),
        *(plan.plan({"a": MARKS}), Workload("w", "d", "s", (asked,)), engine.scheduler),
        ServedRequest(asked, 0, 0.0, 9, 9, content),
    ):
        assert not gives_away(f"{thing!r} {thing}", content), type(thing).__name__
    assert isinstance(request, EngineRequest)
    engine.run()


def test_serving_writes_no_log(model, capfd, caplog, tmp_path):
    """A text is served, cached, swapped, and fails, and nobody writes a line about it."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        engine = Engine(model, num_blocks=6, block_size=4, swap_tokens=8)
        for i in range(3):
            engine.submit(MARKS[i : i + 9], 6)
        engine.run()
        cache = tiered(BlockFiles(tmp_path))
        serve(cache, MARKS)
        for seq_id in "bc":
            cache.add(seq_id)
        with pytest.raises(OutOfBlocks):
            cache.plan({"b": MARKS, "c": MARKS})
        cache.close()
    out, err = capfd.readouterr()
    for text in (out, err, caplog.text, *[str(each.message) for each in warned]):
        assert not gives_away(text, TokenContent(MARKS, 4))


def test_keys_differ_by_everything_that_must_not_be_shared():
    salts = [
        {},
        {"tenant": "a"},
        {"tenant": "b"},
        {"adapter": "a"},
        {"tenant": "a", "adapter": "a"},
    ]
    salts += [{"tenant": "ab"}, {"tenan": "ta"}, {"tenant": ""}]
    keys = [TokenContent(MARKS, 4, extras).key(9) for extras in salts]
    assert len(set(keys)) == len(salts)


def test_a_tenant_finds_nothing_of_anothers_in_an_engine(model):
    engine = Engine(model, num_blocks=64, block_size=4)
    costs = []
    for tenant in ("a", "b", "a"):
        request = engine.submit(MARKS[:13], 2, tenant=tenant)
        engine.run()
        costs.append(request.cost.cached_tokens)
    assert costs == [0, 0, 12]


# What an error may be made of

HIDING = ("len", "type", "shown")
SECRETS = {
    *("key", "keys", "tokens", "token", "token_ids", "prompt", "prompt_ids", "text", "texts"),
    *("content", "contents", "message", "messages", "input_ids", "ids", "words", "line"),
}
# Names that mean something else there; each with what it is.
NOT_OF_A_PROMPT = {
    ("eviction.py", "key"): "what a policy ranks: a block id, or what its caller calls a block",
    ("retention.py", "key"): "a block id or a node",
    ("replay.py", "key"): "an access of a made-up or published trace",
    ("log_values.py", "text"): "a value of a line of a log that the caller holds in hand",
    ("engine_logs.py", "message"): "the line of a log that the caller holds in hand",
    ("trace_lines.py", "text"): "a field of a trace file that the caller holds in hand",
    ("files.py", "text"): "the digits of a number",
    ("block_bytes.py", "key"): "a name, salted by whoever lets blocks leave the process",
    ("capstone.py", "tokens"): "answers to requests that the judge made up",
}


def formatted(path):
    """The names that `raise` statements of a file put into texts, but for counts and shapes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        for part in ast.walk(node.exc):
            if isinstance(part, ast.FormattedValue):
                hidden = {id(name) for each in ast.walk(part) for name in harmless(each)}
                for name in ast.walk(part):
                    if isinstance(name, ast.Name) and id(name) not in hidden:
                        yield name.id, node.lineno


def harmless(node):
    """Names of which a text says nothing: they are counted, or only their shape is told."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in HIDING:
        yield from ast.walk(node)
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device", "num_blocks"):
        yield from ast.walk(node)


def test_no_error_is_made_of_what_was_said():
    found, used = [], set()
    files = [p for p in (ROOT / "kvlib").rglob("*.py") if "show" not in p.parts]
    for path in files:
        for name, line in formatted(path):
            if name in SECRETS and (path.name, name) not in NOT_OF_A_PROMPT:
                found.append(f"{path.name}:{line} {name}")
            used.add((path.name, name))
    assert not found, found
    assert set(NOT_OF_A_PROMPT) <= used, "a reason for nothing"


def test_the_search_finds_what_it_looks_for(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        "def f(prompt, key):\n    raise ValueError(f'got {prompt!r}, {len(key)} bytes')\n"
    )
    assert list(formatted(path)) == [("prompt", 2)]
    content = TokenContent(MARKS, 4)
    assert gives_away(f"token {MARKS[3]}", content) and gives_away(
        content.key(2).hex()[:9], content
    )
    with pytest.raises(AssertionError):
        hidden(b"..." + content.key(1) + b"...", content)
    with pytest.raises(AssertionError):
        hidden(pack(content.key(0), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)), content)
    assert issubclass(LostBlock, LookupError)
