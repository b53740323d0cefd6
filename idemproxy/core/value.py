"""Frozen values that are made for every request."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Value:
    """Equal to another one of its kind with equal fields. `__match_args__` names the fields, which are Final.

    A dataclass or a NamedTuple says the same in fewer lines, but is made by code that Python interprets even where the
    module is compiled: fifteen of them took a fifteenth of all that a first write takes.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        fields = zip(self.__match_args__, self._fields(), strict=True)
        return f"{type(self).__name__}({', '.join([f'{name}={value!r}' for name, value in fields])})"

    def having(self, **changes: Any) -> Self:
        """The same with other fields."""
        return type(self)(**(dict(zip(self.__match_args__, self._fields(), strict=True)) | changes))

    def _fields(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])
