"""What can go wrong, for whoever wants to catch it.

HillError
    TaxonomyError    the labels or their parents
    DataError        the documents
    ConfigError      the settings, and extras that are not installed
    CheckpointError  a saved model
"""

import re

LONGEST = 1_500
"""Characters of a message that a user can still read."""
BREAK = re.compile(r"\s*[\r\n]\s*")
UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What breaks a line, moves a terminal's cursor, turns the direction of writing, or is no character."""


def escaped(text: str, but: str = "") -> str:
    """Text in which what cannot be read is a visible escape, but for these characters."""
    return UNREADABLE.sub(
        lambda found: found[0] if found[0] in but else found[0].encode("unicode_escape").decode(), text
    )


def one_line(text: str) -> str:
    r"""Text as one line that can be read: what cannot be shown is escaped, and what is too long loses its middle.

    >>> one_line("label 'a\x1b' of\n  a file")
    "label 'a\\x1b' of a file"
    """
    shown = escaped(BREAK.sub(" ", text))
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} … {shown[-LONGEST // 3 :]}"


class HillError(ValueError):
    """Base of every error this package raises on purpose; its message is one line, fit to show to a user."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class TaxonomyError(HillError):
    """A taxonomy cannot be read, or breaks a rule of taxonomies."""


class DataError(HillError):
    """A data file cannot be read, or a document in it cannot be used."""


class ConfigError(HillError):
    """A setting is unknown, of the wrong kind or out of range, or needs an extra that is not installed."""


class CheckpointError(HillError):
    """A saved model is missing a part, damaged, or was made for something else."""
