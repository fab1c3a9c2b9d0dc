"""Gives a function of a live module the code it has in a changed text of the module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any


def change(module: ModuleType, source: str) -> Callable[[], None] | None:
    """Returns what puts a mutant into a module, or None where only a new import would.

    That is so if the change lies outside of all functions: in a default, a decorator, a class, or a
    constant; or in a function that cannot be found by its name.
    """
    old = _functions(compile(inspect.getsource(module), "mutant", "exec"))
    new = _functions(compile(source, "mutant", "exec"))
    differ = [name for name in old if name in new and _does(old[name]) != _does(new[name])]
    if old.keys() != new.keys() or len(differ) != 1:
        return None
    function = _function(module, differ[0])
    code = new[differ[0]]
    if function is None or function.__code__.co_freevars != code.co_freevars:
        return None
    return partial(setattr, function, "__code__", code.replace(co_filename=str(module.__file__)))


def _functions(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module and of its classes, by name; none that are local to another."""
    return {each.co_qualname: each for each in _inner(code)}


def _inner(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_NEWLOCALS and each.co_flags & inspect.CO_OPTIMIZED:
                yield each
            else:  # the body of a class
                yield from _inner(each)


def _does(code: CodeType) -> tuple[Any, ...]:
    consts = [_does(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_exceptiontable, tuple(consts)


def _function(module: ModuleType, name: str) -> FunctionType | None:
    found: Any = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part, None)
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        found = getattr(found, attribute, found)
    known = isinstance(found, FunctionType) and found.__module__ == module.__name__
    return found if known and found.__qualname__ == name else None
