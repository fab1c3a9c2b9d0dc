"""Inserting a text into a tree of runs: where two texts part, a run is split."""

TASK = """
A radix tree as dictionaries: each key is a run of letters, its value the tree of what follows. No
two runs of one dictionary begin with the same letter. **Insert a text and return how many of its
letters were known.**

- Follow the runs as long as they agree with the text.
- Where the text leaves a run in its middle, split the run: the common part becomes the key, and
  below it stand the rest of the run, with all that followed it, and the rest of the text.
- Where nothing goes on with the text's next letter, add the rest of the text as one run, with `{}`
  below it.
- A text that ends inside a run, or at its end, changes nothing.
"""

STUB = """
def insert(tree, text):
    tree.setdefault(text, {})
    return 0
"""

SOLUTION = """
def insert(tree, text):
    known = 0
    while text:
        run = next((run for run in tree if run[0] == text[0]), None)
        if run is None:
            tree[text] = {}
            break
        same = 1
        while same < min(len(run), len(text)) and run[same] == text[same]:
            same += 1
        known += same
        text = text[same:]
        if text and same < len(run):
            tree[run[:same]] = {run[same:]: tree.pop(run)}
        tree = tree.get(run[:same], {})
    return known
"""

WRONG = (
    STUB,
    # Loses what followed the run.
    SOLUTION.replace("tree.pop(run)}", "{}}; del tree[run]"),
    # Leaves the whole run beside its beginning.
    SOLUTION.replace("tree.pop(run)}", "tree[run]}"),
    # Splits where a text only ends.
    SOLUTION.replace("if text and same", "if same"),
    # The same, but only where something follows the run.
    SOLUTION.replace("if text and same", "if (text or tree[run]) and same"),
    # Never splits, and hangs the rest below the whole run.
    SOLUTION.replace("if text and same < len(run)", "if False").replace(
        "tree.get(run[:same], {})", "tree[run]"
    ),
    # Counts the letters of the last run alone.
    SOLUTION.replace("known += same", "known = same"),
    # Takes one letter for agreement about all.
    SOLUTION.replace("run[same] == text[same]", "True"),
)

CASES = (
    ("abcdef", "abxy", "abcd", "abcdef", "abx", "abcdq", "m"),
    ("aaaa", "aa", "aaab", "aab", "ab"),
    ("to", "toast", "toad", "tea", "toasted", "t"),
    ("abcd", "efgh", "abef"),
    ("abcdx", "abcdy", "ab", "abcd", "abz"),
)


def _known(texts, text):
    return max(n for n in range(len(text) + 1) if any(t[:n] == text[:n] for t in texts) or not n)


def _tree(texts):
    """The tree by where its runs end: where a text ends, and where it left what was known."""
    ends = set()
    for i, text in enumerate(texts):
        known = _known(texts[:i], text)
        if known < len(text):
            ends |= {text[:known], text} - {""}
    trees = {"": {}} | {end: {} for end in ends}
    for end in ends:
        above = max((other for other in trees if other != end and end.startswith(other)), key=len)
        trees[above][end[len(above) :]] = trees[end]
    return trees[""]


def check(answer):
    for case in CASES:
        tree = {}
        for i, text in enumerate(case):
            before = repr(tree)
            got, expected = answer(tree, text), _known(case[:i], text)
            after = _tree(case[: i + 1])
            if got != expected or tree != after:
                return (
                    f"insert({before}, {text!r}) should return {expected} and leave {after}, but"
                    f" yours gave {got!r} and left {tree}."
                )
    return None
