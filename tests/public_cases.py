"""The tables of public cases: each case is a function under its public id."""

CASES = {}
# About notebooks, widgets and the build: these need what a machine for measurements may lack.
PAGES = {}
# Those that cannot be tried here, each with the reason.
NOT_APPLICABLE = {}


def case(name, among=CASES):
    """Registers a function that tries a case under its public id."""

    def register(tried):
        assert name not in {*CASES, *PAGES, *NOT_APPLICABLE}, f"{name} is tried twice"
        among[name] = tried
        return tried

    return register
