"""Types from which those of `type_forms` inherit. Their annotations have names that only this module has."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal as Money
from typing import Annotated, Generic, List, Optional, TypedDict, TypeVar

Item = TypeVar("Item")


class BasePayment(TypedDict):
    price: Money | None
    notes: List["Note | str"]  # noqa: UP037


class OptionalPayment(BasePayment, total=False):
    tip: Annotated[Money | int, "in euros"]


class Note(TypedDict):
    text: str


@dataclass
class BaseRecord:
    price: Money | None
    note: Optional[Note] = None


class Described(Generic[Item]):
    """A class that is no dataclass itself."""

    price: Money


def pay(price: Money | None, notes: list[Note | str] = []) -> Unknown:  # type: ignore[name-defined]  # noqa: B006, F821
    """Pay.

    Args:
        price: How much.
    """
