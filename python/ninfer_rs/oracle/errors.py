"""Exceptions of the oracle. All are ``ValueError`` so that callers need no special import."""

from __future__ import annotations


class OracleError(ValueError):
    """Base of every error the oracle raises on purpose."""


class UnknownFormatError(OracleError):
    """The name is not one of the 30 registered formats."""


class ShapeError(OracleError):
    """A shape, size, row range or divisor count does not fit the format or its layout."""


class InvalidWordsError(OracleError):
    """A stored word is outside the format's language, or a source value cannot be encoded."""


class UnsupportedError(OracleError):
    """The request is well formed but the format does not offer it."""
