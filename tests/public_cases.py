"""The table of public cases: each is a function under its public id."""

CASES = {}


def case(name):
    """Registers a function that tries a case under its public id."""

    def register(tried):
        assert name not in CASES, f"{name} is tried twice"
        CASES[name] = tried
        return tried

    return register
