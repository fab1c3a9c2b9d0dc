"""A plain model of `kvlib.simulate`: one step after the other, every request looked at in each."""

from kvlib.fcfs import COUNTS
from kvlib.paged_memory import PagedMemory
from kvlib.plan import OutOfBlocks
from kvlib.waste import PARTS


class StepByStep:
    """Requests come first, wait in order of arrival, and run until their last token is stored."""

    def __init__(self, rows, allocator, policy, step_s, patience, drain):
        self.allocator, self.patience, self.drain = allocator, patience, drain
        self.most = min(policy.max_seq_len or allocator.size, allocator.largest_request)
        fits = [
            r
            for r in rows
            if r.prompt_tokens + r.output_tokens <= self.most
            and allocator.can_allocate(policy.reserve(r))
        ]
        self.num_requests, self.refused = len(rows), len(rows) - len(fits)
        self.come = {r.request_id: int(r.arrival_s // step_s) if step_s else 0 for r in fits}
        self.asked = {r.request_id: policy.reserve(r) for r in fits}
        self.held = {r.request_id: r.prompt_tokens for r in fits}
        self.final = {r.request_id: r.prompt_tokens + r.output_tokens for r in fits}
        self.counts, self.parts = dict.fromkeys(COUNTS, 0), dict.fromkeys(PARTS, 0)
        self.outgrown, self.stuck, self.begun = set(), set(), set()
        self.coming, self.line, self.running = sorted(self.come), [], {}
        self.now = min(self.come.values(), default=0)

    def run(self):
        first = self.now
        while True:
            self.finish()
            self.grow()
            self.line += [i for i in self.coming if self.come[i] == self.now]
            self.line.sort(key=lambda i: (i not in self.begun, i))
            self.coming = [i for i in self.coming if self.come[i] > self.now]
            self.admit()
            self.turn_away()
            if not self.drain and not (self.line or self.coming):
                self.leave()
            if not (self.running or self.line or self.coming):
                break
            self.count()
            self.now += 1
        return self.counts | {
            "steps": self.now - first,
            "num_requests": self.num_requests,
            "refused": self.refused,
            "overflowed": len(self.outgrown),
            "waited_with_room": len(self.stuck),
            "unit_steps": self.parts,
        }

    def late(self, i):
        waited = self.now - self.come[i]
        return i not in self.begun and self.patience is not None and waited >= self.patience

    def finish(self):
        for i in [i for i in self.running if self.held[i] == self.final[i]]:
            self.allocator.free(self.running.pop(i))
            self.counts["finished"] += 1

    def grow(self):
        for i in sorted(i for i in self.running if self.held[i] == self.running[i].size):
            self.outgrown.add(i)
            piece, paged = self.running[i], isinstance(self.allocator, PagedMemory)
            step = self.allocator.block_size if paged else piece.size
            self.asked[i] = min(piece.size + step, self.most)
            try:
                self.running[i] = self.allocator.resize(piece, self.asked[i])
            except OutOfBlocks:
                self.allocator.free(self.running.pop(i))
                self.line.append(i)
                self.counts["preempted"] += 1
                self.counts["recomputed_tokens"] += self.held[i]
            else:
                moved = self.running[i].start != piece.start
                self.counts["copied_tokens"] += self.held[i] * moved

    def admit(self):
        while self.line:
            i = self.line[0]
            if self.allocator.can_allocate(self.asked[i]):
                self.running[self.line.pop(0)] = self.allocator.allocate(self.asked[i])
                self.begun.add(i)
                continue
            if self.allocator.num_free >= self.asked[i]:
                self.stuck.add(i)
            if not self.late(i):
                break
            self.line.pop(0)
            self.counts["turned_away"] += 1

    def turn_away(self):
        for i in [i for i in self.line if self.late(i)]:
            self.line.remove(i)
            self.counts["turned_away"] += 1

    def leave(self):
        for i in list(self.running):
            self.allocator.free(self.running.pop(i))
            self.counts["unfinished"] += 1

    def count(self):
        counts, parts = self.counts, self.parts
        counts["peak_running"] = max(counts["peak_running"], len(self.running))
        following = self.line or self.coming
        split = self.allocator.split(self.asked[following[0]] if following else 1)
        parts["external_fragmentation"] += split.external_fragmentation
        parts["free"] += split.free
        for i, piece in self.running.items():
            self.held[i] += 1
            will = min(piece.size, self.final[i])
            counts["request_steps"] += 1
            parts["used"] += self.held[i]
            parts["reservation"] += will - self.held[i]
            parts["internal_fragmentation"] += max(0, piece.size - self.final[i])
            counts["rounded_up"] += piece.size - max(self.asked[i], will)
        counts["waiting_steps"] += len(self.line)
