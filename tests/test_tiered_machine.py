"""Any order of serving, swapping, failing disks and damage: what is read is what was written."""

import errno
import tempfile
import time

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sizes import KVShape
from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.copy_lane import CopyLane
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tier import Tier

SHAPE, SIZE, BLOCKS = KVShape(num_layers=2, num_kv_heads=1, head_dim=2), 2, 6
BLOCK_BYTES = SIZE * 2 * 2 * 2 * 4
texts = st.lists(st.integers(1, 2), min_size=3, max_size=7)
late = st.sampled_from([0, 0.003])


class Failing:
    """Puts that fail while `broken` is set, and blocks that turn out lost."""

    broken = False

    def __init__(self, *args):
        super().__init__(*args)
        self.struck = set()

    def put(self, key, k, v):
        if self.broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(key, k, v)
        self.struck.discard(key)

    def get(self, key):
        if key in self.struck:
            raise LostBlock("struck")
        return super().get(key)


class FailingHost(Failing, HostBlocks):
    """On the host."""


class FailingFiles(Failing, BlockFiles):
    """On a disk."""


def rows(tokens, first):
    """What the model would compute: each token's key depends on all tokens before it."""
    numbers, total = [], 0
    for token in tokens:
        total = (total * 7 + token) % 10007
        numbers.append(total)
    return torch.tensor(numbers[first:], dtype=torch.float32).view(-1, 1, 1).expand(-1, 1, 2)


class Tiers(RuleBasedStateMachine):
    """Sequences with equal beginnings, over a host with room for four blocks and a disk."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.host, self.disk = FailingHost(), FailingFiles(self.folder.name)
        tiers = [
            (Tier("host", 4 * BLOCK_BYTES, 10), self.host),
            (Tier("disk", 9 * BLOCK_BYTES, 1), self.disk),
        ]
        slow = CopyLane(gb_s=BLOCK_BYTES / 1e6)  # a block takes a millisecond
        self.cache = TieredKVCache(SHAPE, BLOCKS, SIZE, tiers=tiers, lane=slow, policy="write_back")
        self.cache.store.keys.fill_(-1)
        self.texts, self.swapped, self.next = {}, {}, 0

    def teardown(self):
        self.cache.check()
        self.cache.close()
        self.folder.cleanup()

    def pick(self, data, among=None):
        return data.draw(st.sampled_from(sorted(among or self.texts)))

    def delay(self, seconds):
        if seconds:
            self.cache.lane.submit(lambda: time.sleep(seconds))

    @rule(prompt=texts, late=late)
    def begin(self, prompt, late):
        seq_id, self.next = self.next, self.next + 1
        self.cache.add(seq_id, prompt)
        held = self.cache.length(seq_id)
        assert held % SIZE == 0 and held < len(prompt)
        self.texts[seq_id] = prompt[:held]
        self.delay(late)
        self.go_on(seq_id, prompt[held:])

    @rule(prompt=texts, late=late)
    def serve(self, prompt, late):
        self.begin(prompt, 0)
        self.delay(late)
        self.end(self.next - 1)

    @rule(prompt=texts)
    def change_ones_mind(self, prompt):
        """Blocks are still arriving when their owner leaves, and the next one writes."""
        self.cache.add("nobody", prompt)
        self.cache.free("nobody")
        self.begin(prompt[::-1], 0)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), new=st.lists(st.integers(1, 2), min_size=1, max_size=2))
    def step(self, data, new):
        self.go_on(self.pick(data), new)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), layers=st.integers(0, 2))
    def step_that_fails(self, data, layers):
        seq_id = self.pick(data)
        try:
            plan = self.cache.plan({seq_id: [1]})
        except (OutOfBlocks, SequenceTooLong):
            return
        for layer in range(layers):
            wrong = torch.full((1, 1, 2), -2.0)
            self.cache.write(layer, wrong, wrong, plan)
            self.cache.attend(layer, wrong, plan)
        self.cache.abort(plan)

    def go_on(self, seq_id, new):
        cache, text = self.cache, self.texts[seq_id] + new
        try:
            plan = cache.plan({seq_id: new})
        except (OutOfBlocks, SequenceTooLong):
            return
        k = rows(text, len(text) - len(new))
        for layer in range(2):
            cache.write(layer, k + layer, -k, plan)
            cache.attend(layer, k, plan)
            slots = cache.ledger._slots(seq_id, range(len(text)))
            seen = cache.store.read(layer, torch.tensor(list(slots)))
            assert torch.equal(seen[0], rows(text, 0) + layer), "keys"
            assert torch.equal(seen[1], -rows(text, 0)), "values"
        cache.commit(plan)
        self.texts[seq_id] = text

    def end(self, seq_id):
        self.cache.free(seq_id)
        del self.texts[seq_id]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        self.end(self.pick(data))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        parent = self.pick(data)
        self.cache.fork(parent, self.next)
        self.texts[self.next] = list(self.texts[parent])
        self.next += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data):
        seq_id = self.pick(data)
        length = data.draw(st.integers(0, len(self.texts[seq_id])))
        self.cache.truncate(seq_id, length)
        del self.texts[seq_id][length:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), late=late)
    def swap_out(self, data, late):
        seq_id = self.pick(data)
        self.delay(late)
        try:
            self.cache.swap_out(seq_id)
        except OutOfBlocks:
            return
        self.swapped[seq_id] = self.texts.pop(seq_id)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data):
        seq_id = self.pick(data, self.swapped)
        try:
            length = self.cache.swap_in(seq_id)
        except OutOfBlocks:
            return
        text = self.swapped.pop(seq_id)
        assert length == len(text) or self.ever_failed, "a block was lost, and nothing had failed"
        self.texts[seq_id] = text[:length]

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def free_swapped(self, data):
        seq_id = self.pick(data, self.swapped)
        self.cache.free(seq_id)
        del self.swapped[seq_id]

    ever_failed = False

    @rule(host=st.booleans(), disk=st.booleans())
    def disks_fail_or_recover(self, host, disk):
        self.cache.drain()
        self.host.broken, self.disk.broken = host, disk
        self.ever_failed |= host

    @rule(data=st.data())
    def damage(self, data):
        self.cache.drain()
        paths = sorted(self.disk.folder.glob("*.safetensors"))
        if paths:
            path = data.draw(st.sampled_from(paths))
            whole = bytearray(path.read_bytes())
            whole[data.draw(st.integers(0, len(whole) - 1))] ^= 4
            path.write_bytes(whole)

    @rule(data=st.data())
    def lose_on_the_host(self, data):
        self.cache.drain()
        if self.host._blocks:
            self.host.struck.add(data.draw(st.sampled_from(sorted(self.host._blocks))))
            self.ever_failed = True

    @rule()
    def proves_its_invariants(self):
        self.cache.check()
        self.cache.drain()
        for tier, held in ((0, self.host), (1, self.disk)):
            assert len(held) == len(self.cache.lower.stack.keys(tier)), "bytes that no book knows"

    @invariant()
    def lengths_agree(self):
        assert {s: len(t) for s, t in self.texts.items()} == {
            s: self.cache.length(s) for s in self.cache.ledger.seq_ids
        }
        assert {s: len(t) for s, t in self.swapped.items()} == self.cache.swapped


Tiers.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTiers = Tiers.TestCase
