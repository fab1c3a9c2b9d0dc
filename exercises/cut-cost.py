"""Order a prompt's parts so that a prefix cache saves at least 30 %."""

from random import Random

TASK = """
`turns` are an application's first prompts, in order: each a dictionary from a part's name to its
token ids (a tuple). Concatenated in the order in which the dictionaries list them, they cost too
much. **Return the names of all parts in a better order.**

- The last part is `question`, for the answer follows it.
- The cache keeps everything, in blocks of 4 tokens; of a prompt at least the last token is
  computed.
- Scored are the *next* prompts of the same application: they must compute at least 30 % fewer
  tokens than in the order given.
"""

STUB = """
def order(turns):
    return list(turns[0])
"""

SOLUTION = """
def order(turns):
    def num_values(name):
        return len({turn[name] for turn in turns})

    names = [name for name in turns[0] if name != "question"]
    return sorted(names, key=num_values) + ["question"]
"""

WRONG = (
    STUB,
    # What changes most comes first.
    SOLUTION.replace("key=num_values", "key=num_values, reverse=True"),
    # The question first: nothing behind it is found.
    SOLUTION.replace('sorted(names, key=num_values) + ["question"]', '["question", *names]'),
    # Leaves out what disturbs.
    SOLUTION.replace('name != "question"]', 'name not in ("question", "date")]'),
    # Shortest first.
    SOLUTION.replace("key=num_values", "key=lambda name: len(turns[0][name])"),
    # By the alphabet.
    SOLUTION.replace("key=num_values", "key=str"),
    # A part twice.
    SOLUTION.replace('+ ["question"]', '+ ["system", "question"]'),
)

BLOCK = 4


def _turns(seed):
    draw = Random(f"cut-cost/{seed}")

    def text(num_tokens):
        return tuple(int(draw.random() * 10_000) for _ in range(num_tokens))

    system, tools = text(8 + 4 * seed), text(24)
    users, pages = [text(6) for _ in range(4)], [text(20) for _ in range(3)]
    histories = [()] * 4
    turns = []
    for i in range(40):
        who = int(draw.random() * 4)
        question = text(5)
        turns.append(
            {
                "date": text(5),
                "user": users[who],
                "system": system,
                "history": histories[who],
                "documents": pages[int(draw.random() * 3)],
                "tools": tools,
                "question": question,
            }
        )
        if seed == 1:  # an application whose date says the day, and whose users are all strangers
            turns[-1] |= {"date": (7, 7, 7, i // 30, 7), "user": text(6)}
        histories[who] = (*histories[who], *question, *text(4))[-40:]
    return turns


def _computed(turns, names):
    known, computed = set(), []
    for turn in turns:
        prompt = tuple(token for name in names for token in turn[name])
        ends = range(BLOCK, len(prompt) + 1, BLOCK)
        found = 0
        for end in ends:
            if prompt[:end] not in known or end >= len(prompt):
                break
            found = end
        known.update(prompt[:end] for end in ends)
        computed.append(len(prompt) - found)
    return computed


def check(answer):
    for seed in range(3):
        turns = _turns(seed)
        names = list(turns[0])
        got = answer([dict(turn) for turn in turns[:20]])
        whole = isinstance(got, list | tuple) and sorted(map(str, got)) == sorted(names)
        if not whole or got[-1] != "question":
            return (
                f"order(turns) should be each of {names} once, with question last, but yours gave"
                f" {got!r}."
            )
        before, after = (sum(_computed(turns, each)[20:]) for each in (names, got))
        if after > 0.7 * before:
            return (
                f"order(turns) should be one whose next 20 prompts compute at most"
                f" {7 * before // 10} tokens of application {seed}, but yours computes {after}:"
                f" {got!r}."
            )
    return None
