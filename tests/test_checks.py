"""Every `check` finds what it says: each structure is spoilt in one place after another."""

import pytest

from kvlib.allocator import Piece
from kvlib.arena import Arena
from kvlib.block_table import BlockTable
from kvlib.blocks import BlockPool
from kvlib.buddy import BuddyArena
from kvlib.content import TokenContent
from kvlib.eviction import FIFOPolicy, LFUPolicy
from kvlib.frequency import UseCounts, _Count
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.preemption import SwapSpace
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import RankedLRU
from kvlib.scheduler import Scheduler
from kvlib.slab import SlabPool
from kvlib.tier import Tier
from kvlib.tiers import TierStack
from prefix_cases import Sequence


def table(**cases):
    """One parameter for each case: what is made, how it is spoilt, and what `check` calls that."""
    return pytest.mark.parametrize("spoil, named", cases.values(), ids=cases.keys())


def found(made, spoil, named):
    made.check()
    spoil(made)
    with pytest.raises(AssertionError, match=named):
        made.check()


@table(
    below_nothing=(lambda p: p._refs.__setitem__(0, -1), "a negative reference count"),
    twice_free=(lambda p: p._empty.update({3: None}), "a block in both lines"),
    held_and_empty=(lambda p: p._empty.update({1: None}), "a held block in a free line"),
    held_and_kept=(lambda p: p._kept.update({1: None}), "a held block in a free line"),
    lost=(lambda p: p._empty.popitem(), "a block is lost"),
    one_too_many=(lambda p: p._empty.update({9: None}), "a block is lost"),
    kept_empty=(lambda p: p._marked.__setitem__(3, False), "kept without content"),
    content_of_nobody=(lambda p: p._marked.__setitem__(4, True), "content left behind"),
)
def test_a_block_pool(spoil, named):
    """Blocks 0 to 2 are held, 3 is kept, 4 and 5 are empty."""
    pool = BlockPool(6)
    pool.allocate(4)
    pool.mark(3)
    pool.mark(2)
    pool.free([3])
    found(pool, spoil, named)


@table(
    gap=(lambda a: a._holes.pop(0), "a gap or an overlap at 3"),
    empty_piece=(lambda a: a._holes.append(Piece(9, 0)), "an empty piece"),
    lost=(lambda a: a._holes.pop(), "units lost: 3"),
    misfiled=(lambda a: (a._live.update({4: a._live.pop(0)}), refiled(a)), "is filed under 4"),
    asked_for_nothing=(lambda a: a._asked.update({0: 0}), "too small for its request"),
    asked_for_more=(lambda a: a._asked.update({0: 4}), "too small for its request"),
    nobody_asked=(lambda a: a._asked.clear(), "a piece without its request"),
    touching=(
        lambda a: a._holes.__setitem__(0, Piece(3, 1)) or a._holes.insert(1, Piece(4, 2)),
        "two holes touch",
    ),
)
def test_an_arena(spoil, named):
    """Units 0 to 2 and 6 to 8 of 12 are handed out."""
    arena = Arena(12)
    pieces = [arena.allocate(3) for _ in range(3)]
    arena.free(pieces[1])
    found(arena, spoil, named)


@table(
    too_many=(lambda t: t._blocks.append(5), "5 blocks for 13 tokens"),
    before_none=(lambda t: setattr(t, "_first_kept", -1), "the first block kept is -1"),
    beyond=(lambda t: setattr(t, "_first_kept", 5), "the first block kept is 5 of 4"),
    kept=(lambda t: t._blocks.__setitem__(0, 0), "not all are given back"),
    twice=(lambda t: t._blocks.__setitem__(2, t._blocks[3]), "a block stands twice"),
    not_held=(lambda t: t._pool.free(t._blocks[3:]), "a block that nobody holds"),
)
def test_a_block_table(spoil, named):
    """Thirteen tokens in blocks of 4, of which a window has dropped the first four."""
    made = BlockTable(BlockPool(6), 4)
    made.append(13)
    made.drop_before(7)
    found(made, spoil, named)


def refiled(arena):
    arena._asked[4] = arena._asked.pop(0)


@table(
    three=(lambda a: a._starts.update({8: [], 3: [8], 1: [11], 4: [12]}), "no power of two"),
    crooked=(lambda a: a._starts.update({8: [], 2: [8, 14], 4: [10]}), "not aligned"),
    apart=(lambda a: a._starts.update({8: [], 4: [8, 12]}), "free buddies of 4 apart"),
    overlap=(lambda a: a._starts.update({4: [8]}), "a gap or an overlap"),
)
def test_a_buddy_arena(spoil, named):
    arena = BuddyArena(16)
    arena.allocate(8)
    found(arena, spoil, named)


def halve(pool):
    pool._live = {0: Piece(0, 5), 5: Piece(5, 5)}
    pool._asked = {0: 3, 5: 3}


@table(
    half=(halve, "not a chunk"),
    twice=(lambda p: p._chunks.append(0), "a gap or an overlap"),
)
def test_a_slab_pool(spoil, named):
    pool = SlabPool(42, 10)
    pool.allocate(3)
    found(pool, spoil, named)


@table(
    two_owners=(lambda g: g._free_rows.append(0), "rows lost or owned twice"),
    no_owner=(lambda g: g._free_rows.pop(), "rows lost or owned twice"),
    row_of_nobody=(lambda g: g._lengths.pop("b"), "a row without a length"),
    length_of_nobody=(lambda g: g._lengths.update(z=0), "a row without a length"),
    plan_of_nobody=(lambda g: g._open.open(["z"]), "an open plan of a freed sequence"),
    rows_too_long=(lambda g: setattr(g, "row_len", 5), "rows longer than they may become"),
    less_than_none=(lambda g: g._lengths.update(a=-1), "length out of row"),
    plan_lost=(lambda g: g._open._listed.clear(), "sequences in plans that are not open"),
    outgrown=(lambda g: g._open._outgrown.add(99), "outgrown, not open"),
    too_long=(lambda g: g._lengths.update(a=5), "length out of row"),
)
def test_a_contiguous_ledger(spoil, named):
    """ "a" fills its row, "b" is empty; both may be in an open plan."""
    ledger = ContiguousLedger(3, 4)
    ledger.add("a")
    ledger.add("b")
    ledger.commit(ledger.plan({"a": [0] * 4}))
    ledger.plan({"a": [], "b": [0]})
    found(ledger, spoil, named)


@table(
    pool=(lambda g: g.pool._empty.popitem(), "a block is lost"),
    leak=(lambda g: g.pool.share([0]), "block 0: 3 references, in 2 tables"),
    too_few=(lambda g: g.pool.free([0]), "block 0: 1 references, in 2 tables"),
    forgotten_copy=(lambda g: g._extensions.clear(), "block 1: 2 references, in 1 tables"),
    forgotten=(lambda g: g._open.open(["a"]), "an extension without an open plan"),
    closed=(lambda g: g._open._by_sequence.clear(), "an extension without an open plan"),
    length_of_nobody=(lambda g: g._lengths.update(z=0), "a table without a length"),
    table_of_nobody=(lambda g: g._lengths.pop("a"), "a table without a length"),
    too_long=(lambda g: setattr(g._tables["a"], "num_tokens", 2), "'a' has too many blocks"),
    plan_lost=(lambda g: g._open._listed.clear(), "sequences in plans that are not open"),
    outgrown=(lambda g: g._open._outgrown.add(99), "outgrown, not open"),
    other_length=(lambda g: g._lengths.update(a=4), "length of 'a'"),
    table=(lambda g: setattr(g._tables["a"], "_first_kept", -1), "the first block kept is -1"),
)
def test_a_paged_ledger(spoil, named):
    """Blocks of 2: "a" has 3 tokens, its fork "b" is being written to, with a copy."""
    ledger = PagedLedger(8, 2)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [0] * 3}))
    ledger.fork("a", "b")
    ledger.plan({"b": [0]})
    found(ledger, spoil, named)


def test_in_a_shared_pool_a_table_without_its_reference_is_found_too():
    pool = BlockPool(4)
    ledger = PagedLedger(4, 2, pool=pool)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [0]}))
    pool.share([0])
    ledger.check()
    found(ledger, lambda _: pool.free([0, 0]), "block 0: 0 references, in 1 tables")


@table(
    pins=(lambda p: p._pins.update(b=-1), "fewer than no pins"),
    out_of_line=(lambda p: p._line.popitem(), "the line does not hold the unpinned keys"),
    pinned_in_line=(lambda p: p._pins.update(a=1), "the line does not hold the unpinned keys"),
)
@pytest.mark.parametrize("kind", [FIFOPolicy, LFUPolicy])
def test_an_eviction_policy(kind, spoil, named):
    policy = kind()
    FIFOPolicy().check()
    for key in "ab":
        policy.add(key)
    policy.pin("b")
    found(policy, spoil, named)


@table(
    stranger=(lambda p: p._counts.show("z"), "uses are counted of other keys than are held"),
    ring=(lambda p: setattr(p._counts._zero.higher, "num_keys", 9), "with keys lost"),
)
def test_a_policy_that_counts(spoil, named):
    policy = LFUPolicy()
    policy.add("a")
    found(policy, spoil, named)


def first(counts):
    return counts._zero.higher


@table(
    fall=(lambda c: setattr(first(c).higher, "uses", 1), "the counts do not rise"),
    neighbour=(
        lambda c: setattr(first(c).higher, "lower", c._zero),
        "a neighbour does not know its neighbour",
    ),
    keys_lost=(lambda c: setattr(first(c), "num_keys", 2), "with keys lost"),
    no_keys=(
        lambda c: (first(c).insert_above(), setattr(first(c).higher, "uses", 1.5)),
        "a count without keys",
    ),
    misplaced=(lambda c: first(c).shown.update(b=None), "offered under another count"),
    nowhere=(lambda c: c._count.update(z=_Count(9)), "a key is in no count"),
)
def test_counts_of_uses(spoil, named):
    counts = UseCounts()
    for key in "abb":
        counts.use(key) if key in counts else counts.show(key)
    found(counts, spoil, named)


@table(
    unknown=(lambda p: p._shown.update(z=(9,)), "a key on show that is not known"),
    old=(lambda p: p._shown.update(a=(9,)), "a rank is out of date"),
    lost=(lambda p: p._heap.clear(), "a key is never offered"),
)
def test_a_ranked_policy(spoil, named):
    policy = RankedLRU()
    for key in "ab":
        policy.add(key)
    policy.show("a")
    found(policy, spoil, named)


def indexed(index, policy):
    """One idle sequence of two blocks, 0 and 1, and one that runs, with block 2."""
    pool = BlockPool(6)
    made = index(pool, policy)
    Sequence(pool, made, [1, 2]).stop()
    Sequence(pool, made, [3])
    return made


def keep_a_stranger(index):
    (block,) = index._pool.allocate(1)
    index._pool.mark(block)
    index._pool.free([block])


IN_BOTH = dict(
    pool=(lambda i: i._pool._empty.popitem(), "a block is lost"),
    stranger=(keep_a_stranger, "idle content that is not known"),
    policy=(lambda i: i._policy._heap.clear(), "a key is never offered"),
)


@table(
    **IN_BOTH,
    no_key=(lambda i: i._keys.pop(0), "a key without its block"),
    no_block=(lambda i: i._blocks.popitem(), "a key without its block"),
    unknown=(lambda i: i._policy.forget(0), "the policy knows other blocks"),
    hidden=(lambda i: i._policy.hide(1), "an idle block that cannot be evicted"),
)
def test_a_hash_index(spoil, named):
    found(indexed(HashIndex, RankedLRU()), spoil, named)


def leaf(tree, block):
    return tree._nodes[block]


def empty_out(tree):
    node = leaf(tree, 0)
    node.blocks.clear()
    node.contents.clear()


def rename(tree):
    (root,) = tree._roots.values()
    root.children["other"] = root.children.pop(leaf(tree, 0).contents[0])


@table(
    **IN_BOTH,
    content=(lambda t: leaf(t, 0).contents.append(9), "a block without content"),
    empty=(empty_out, "a node without blocks"),
    renamed=(rename, "a child under a wrong name"),
    orphan=(lambda t: setattr(leaf(t, 0), "parent", leaf(t, 2)), "a child under a wrong name"),
    held_end=(lambda t: t._pool.share([deepest(t)]), "a block is held, one before it is not"),
    in_no_node=(lambda t: t._nodes.pop(0), "a block is in no node, or in two"),
    unknown=(lambda t: t._policy.forget(leaf(t, 0)), "the policy knows other nodes"),
    hidden=(lambda t: t._policy.hide(leaf(t, 0)), "an idle leaf that cannot be evicted"),
)
def test_a_radix_tree(spoil, named):
    found(indexed(RadixTree, RankedLRU()), spoil, named)


def deepest(tree):
    return leaf(tree, 0).blocks[-1]


def test_below_a_node_that_is_idle_no_child_is_held():
    tree = indexed(RadixTree, None)
    above, below = tree.find(TokenContent([1, 2], 1), 2)
    Sequence(tree._pool, tree, [1, 7]).stop()
    assert leaf(tree, above) is leaf(tree, below).parent
    found(tree, lambda _: tree._pool.share([below]), "one before it is not")


def served(block_size=2):
    """Two requests run in blocks of 2, a third waits."""
    made = Scheduler(KVMemory(7, block_size, HashIndex), swap=SwapSpace(9))
    for i in range(3):
        made.add(Request(i, None, 5, 3))
    made.report(made.schedule())
    return made


@table(
    pool=(lambda m: m.pool._empty.popitem(), "a block is lost"),
    index=(lambda m: m.prefixes._blocks.update(x=0), "a key without its block"),
    leak=(lambda m: m.pool.share([0]), "references to 0"),
    room=(lambda m: setattr(min(m._live, key=by_order), "room", 9), "room of 0"),
    too_much=(lambda m: setattr(min(m._live, key=by_order), "num_computed", 7), "0 computed more"),
    indexed=(
        lambda m: setattr(min(m._live, key=by_order), "num_indexed", 4),
        "0: 8 tokens indexed",
    ),
)
def test_a_memory(spoil, named):
    memory = served().memory
    for job in memory._live:
        job.num_computed = job.room
    found(memory, spoil, named)


def test_a_memory_without_an_index():
    found(KVMemory(4, 2), lambda m: m.pool._empty.popitem(), "a block is lost")


def by_order(job):
    return job.order


def stopped_unseen(scheduler):
    """The first request has no memory any more, and the scheduler's sums agree with that."""
    job = scheduler.running[0]
    batch = scheduler.running
    batch.room_tokens -= job.room
    batch.computed_tokens -= job.num_computed
    batch.needed_tokens -= min(job.room, job.stop_at)
    batch.memory.stop(job)


@table(
    memory=(lambda s: s.memory.pool._empty.popitem(), "a block is lost"),
    line=(lambda s: s.waiting.push(s.waiting.head()), "one of 2 waits twice"),
    roomless=(stopped_unseen, "a request runs without room"),
    space=(lambda s: setattr(s.running.swap, "num_free", 10), "10 tokens free of 9"),
    twice=(lambda s: s.running._jobs.append(s.running[0]), "a request runs twice"),
    both=(lambda s: s.waiting.push(s.running[0]), "a request waits and runs"),
    room=(lambda s: setattr(s.running, "room_tokens", 0), "room miscounted"),
    computed=(lambda s: setattr(s.running, "computed_tokens", 0), "computed"),
    needed=(lambda s: setattr(s.running, "needed_tokens", 0), "needed"),
    waiting=(lambda s: setattr(s, "waiting_tokens", 0), "waiting tokens"),
    swap=(lambda s: s.running.swap.take(1), "swap space miscounted"),
)
def test_a_scheduler(spoil, named):
    found(served(), spoil, named)


def stacked():
    """The first tier is full with "a", pinned, and "b"; both are in the second, too."""
    stack = TierStack([Tier("gpu", 2, 9), Tier("host", 4, 1)], 1)
    for key in "ab":
        stack.store(key)
    stack.pin("a")
    return stack


def overfill(stack):
    stack._books[0].add("z")


def replace(stack):
    stack._books[0].order.remove("b")
    stack._books[0].order.add("z")


@table(
    full=(overfill, "a tier holds more than its capacity"),
    order=(lambda s: s._books[0].order.add("z"), "the eviction policy knows other blocks"),
    replaced=(replace, "a held block could never be evicted"),
    pinned=(lambda s: s._books[0].pins.update(b=1), "a pinned block could be evicted"),
    unpinned=(lambda s: s._books[0].pins.update(a=0), "a pinned block could be evicted"),
    line=(lambda s: s._books[0].order._pins.update(b=2), "the line does not hold"),
    uses=(lambda s: s._uses.update(z=1), "uses are counted of other blocks"),
)
def test_a_stack_of_tiers(spoil, named):
    found(stacked(), spoil, named)
