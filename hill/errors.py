"""What can go wrong, for whoever wants to catch it.

HillError
    TaxonomyError    the labels or their parents
    DataError        the documents
    ConfigError      the settings, and extras that are not installed
    CheckpointError  a saved model
"""


class HillError(ValueError):
    """Base of every error this package raises on purpose; its message is fit to show to a user."""


class TaxonomyError(HillError):
    """A taxonomy cannot be read, or breaks a rule of taxonomies."""


class DataError(HillError):
    """A data file cannot be read, or a document in it cannot be used."""


class ConfigError(HillError):
    """A setting is unknown, of the wrong kind or out of range, or needs an extra that is not installed."""


class CheckpointError(HillError):
    """A saved model is missing a part, damaged, or was made for something else."""
