"""A memory's bytes without tensors: each slot remembers which text was computed into it.

A slot holds the name of a token together with all tokens before it. Whoever reads a slot that was
never written for its text, or was given to somebody else since, reads another name and is found.
"""

from hashlib import sha256


def names(tokens, namespace=()):
    """For each position a name of the token there and of all before it."""
    chain = sha256(repr(namespace).encode())
    found = []
    for token in tokens:
        chain.update(b"%d " % token)
        found.append(chain.digest()[:8])
    return found


class Shadow:
    """Blocks of slots, carried along with a scheduler over blocks: moved, read and written."""

    def __init__(self, memory):
        self.memory, self.size = memory, memory.block_size
        self.slots = {}
        self.host = {}
        self.reads = 0

    def carry_out(self):
        """Does the moves that an engine's memory asks for, in order."""
        moves = getattr(self.memory, "moves", ())
        while moves:
            move = moves.popleft()
            if move.kind == "copy":
                ((source, target),) = move.blocks
                for i in range(move.num_tokens):
                    self.slots[target, i] = self.slots.get((source, i))
                continue
            places = [(b, i) for _, b in move.blocks for i in range(self.size)][: move.num_tokens]
            if move.kind == "out":
                self.host[move.job] = [self.slots.get(place) for place in places]
            elif places:
                self.slots.update(zip(places, self.host[move.job][-len(places) :], strict=True))

    def compute(self, job, n, text):
        """Reads all that stands before a request's next tokens, then writes these."""
        for at, name in enumerate(text[: job.num_computed + n]):
            block, offset = divmod(at, self.size)
            place = job.block_ids[block], offset
            if at < job.num_computed:
                self.reads += 1
                assert self.slots.get(place) == name, f"request {job.order} reads another's {at}"
            else:
                self.slots[place] = name
