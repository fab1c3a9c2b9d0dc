"""The same tools, the same text: whatever the order in which they come."""

import json

TASK = """
An application puts its tools into the prompt as JSON. They come out of a registry that promises no
order: neither of the tools, nor of the keys in each. Two prompts with the same tools then differ in
their first tokens, and nothing behind is found. `tools` is a list of dictionaries, each with a
`name` of its own. **Return a text** that

- is the same for the same tools, in whatever order the tools and the keys come;
- is JSON for a list that holds every tool, unchanged;
- keeps the order *inside* lists such as `required` and `enum`: there it may mean something.
"""

STUB = """
import json

def render(tools):
    return json.dumps(tools)
"""

SOLUTION = """
import json

def render(tools):
    return json.dumps(sorted(tools, key=lambda tool: tool["name"]), sort_keys=True)
"""

WRONG = (
    STUB,
    # The keys are sorted, the tools are not.
    SOLUTION.replace('sorted(tools, key=lambda tool: tool["name"])', "tools"),
    # The tools are sorted, the keys are not.
    SOLUTION.replace(", sort_keys=True", ""),
    # Names alone.
    SOLUTION.replace(", key=lambda tool: tool", "").replace(
        'sorted(tools["name"])', "sorted(t['name'] for t in tools)"
    ),
    # Sorted by how long they are: equal lengths stay as they came.
    SOLUTION.replace('key=lambda tool: tool["name"]', "key=lambda tool: len(str(tool))"),
    # Sorted by a text that itself hangs on the order of the keys.
    SOLUTION.replace('key=lambda tool: tool["name"]', "key=str"),
    # Not JSON.
    SOLUTION.replace("json.dumps(", "str(").replace(", sort_keys=True", ""),
    # Sorts the letters.
    'import json\n\ndef render(tools):\n    return "".join(sorted(json.dumps(tools)))\n',
)

SEARCH = {
    "name": "search",
    "description": "finds pages",
    "parameters": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["query", "limit"],
}
CLOCK = {"name": "clock", "description": "says the time", "parameters": {}, "required": []}
WATCH = CLOCK | {"name": "watch", "description": "says the date"}  # as long as the other
MAIL = {
    "description": "sends a letter",
    "name": "mail",
    "parameters": {"to": {"enum": ["b", "a"], "type": "string"}},
    "required": ["to"],
}
TOOLS = ([SEARCH, CLOCK, MAIL], [CLOCK, WATCH], [SEARCH], [])


def _turned(value):
    """The same value, with the keys of every dictionary in the opposite order."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return value


def check(answer):
    texts = {}
    for tools in TOOLS:
        ways = [tools, tools[::-1], tools[1:] + tools[:1]]
        ways += [[_turned(tool) for tool in way] for way in ways]
        got = [answer(json.loads(json.dumps(way))) for way in ways]
        if not all(isinstance(text, str) for text in got):
            return f"render({tools}) should return a text, but yours gave {got[0]!r}."
        for way, text in zip(ways, got, strict=True):
            if text != got[0]:
                return (
                    f"render({way}) should be {got[0]!r}, as in another order; yours is {text!r}."
                )
        fault = _fault(tools, got[0])
        if fault:
            return fault
        texts[got[0]] = tools
    if len(texts) < len(TOOLS):
        return "Different tools should return different texts; yours are alike."
    return None


def _fault(tools, text):
    try:
        back = json.loads(text)
    except ValueError:
        return f"render({tools}) should return JSON, but yours is {text!r}."
    held = isinstance(back, list) and len(back) == len(tools)
    if not held or any(tool not in back for tool in tools):
        return f"render({tools}) should return every tool unchanged, but yours holds {back!r}."
    return None
