"""Cases of a client: one line a case, `ok NAME` or `not ok NAME: why`."""

import sys

CASES = []


def case(function):
    CASES.append(function)
    return function


def raises(kind, ask, **want):
    """The error of this kind that `ask` raises, with the wanted attributes."""
    try:
        ask()
    except kind as err:
        for name, value in want.items():
            have = getattr(err, name)
            assert have == value, f"{name} is {have!r}, want {value!r}"
        return err
    raise AssertionError("it was taken")


def run(cases=None):
    """Runs the cases and ends the program."""
    failed = 0
    for function in CASES if cases is None else cases:
        try:
            function()
            print(f"ok {function.__name__}", flush=True)
        except Exception as err:  # noqa: BLE001: a case may fail in any way, and the others still run
            failed += 1
            print(f"not ok {function.__name__}: {type(err).__name__}: {str(err)[:400]!r}", flush=True)
    sys.exit(1 if failed else 0)
