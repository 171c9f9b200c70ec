"""The one error a user is meant to read."""

from __future__ import annotations


class InputError(Exception):
    """Bad input or environment: one sentence naming the value, the allowed range and the way out.

    Commands print the sentence on stderr and exit with code 2, before any work is done.
    """
