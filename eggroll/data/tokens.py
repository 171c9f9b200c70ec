"""Token ids of the caller's own, in memory, as a corpus.

Letters: S streams, T tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eggroll.data.codings import Numbers
from eggroll.data.corpora import VAL_SHARE, Split, as_fraction
from eggroll.data.corpus import TOKENS, ArrayCorpus
from eggroll.errors import InputError, shown
from eggroll.stage import MAX_VOCABULARY

DIGESTED: Final = 1 << 22  # tokens at a time

Ids = NDArray[Any]


class TokenCorpus(ArrayCorpus):
    """Two arrays of token ids 0..V-1, [tokens], of any integer type; they are not copied.

    Token 0 is the mark that begins a document, as in every corpus: the network's state is zeroed
    there. An array may do without.
    """

    def __init__(self, train: Ids, valid: Ids, vocabulary: int, share: float | None = None) -> None:
        """share: of the tokens, that was held out; None of two arrays."""
        arrays = {"train": train, "valid": valid}
        splits = {k: {"tokens": len(a), "sha256": _digest(a)} for k, a in arrays.items()}
        about = {"vocabulary": vocabulary, "val_share": share, "splits": splits}
        super().__init__(TOKENS, train, valid, Numbers(vocabulary), about)

    def too_small(self, split: Split, streams: int, seq_len: int) -> str:
        what = "training" if split == "train" else "validation"
        return (
            f"the {what} tokens are {len(self._arrays[split]):,}, too few for {streams:,} streams "
            f"of seq_len {seq_len}: {streams * (seq_len + 1):,} are needed, so give more of them, "
            "or use a smaller pop, a larger group_size or a smaller seq_len."
        )


def token_corpus(
    tokens: Any, vocabulary: int | None = None, share: float = VAL_SHARE
) -> TokenCorpus:
    """The corpus of an array [n] of token ids, or of a pair of them: (train, validation).

    vocabulary: V; None: the highest id and 1. share: of one array, the last part that is held out
    for validation, rounded down to whole tokens.

    Raises:
        InputError: the arrays are no token ids, too few, or not below the vocabulary.
    """
    if vocabulary is not None:
        check_vocabulary(vocabulary)
    held: float | None = None if isinstance(tokens, tuple) else share
    if isinstance(tokens, tuple):
        if len(tokens) != 2:
            raise InputError(
                f"tokens is a tuple of {len(tokens)}: one array or a pair (train, validation) is "
                "needed."
            )
        train, valid = (
            token_ids(array, vocabulary, f"tokens[{i}]", shape="[n]")
            for i, array in enumerate(tokens)
        )
    else:
        whole = token_ids(tokens, vocabulary, "tokens", shape="[n]")
        cut = len(whole) - math.floor(len(whole) * as_fraction(share))
        train, valid = whole[:cut], whole[cut:]
    for array, name in ((train, "training"), (valid, "validation")):
        if len(array) < 2:
            raise InputError(
                f"there are {len(array)} {name} tokens: 2 or more are needed, so give a longer "
                "array, or a pair (train, validation)."
            )
    found = 1 + max(int(train.max()), int(valid.max()))
    return TokenCorpus(train, valid, max(found, 2) if vocabulary is None else vocabulary, held)


def token_ids(values: Any, vocabulary: int | None, what: str, shape: str = "[T] or [S, T]") -> Ids:
    """An array of token ids, checked: of integers, not empty, each in 0..V-1.

    vocabulary: V; None allows as many as there can be. shape: [n], or [T] or [S, T].

    Raises:
        InputError: it is none.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{what} is no array ({error}): an array of token ids {shape}, such as int32 or "
            "uint16, is needed."
        ) from error
    described = f"{array.dtype} {list(array.shape)}"
    if array.ndim not in ((1,) if shape == "[n]" else (1, 2)):
        raise InputError(f"{what} is {described}: token ids of shape {shape} are needed.")
    if not array.size:
        raise InputError(f"{what} is empty ({described}): token ids of shape {shape} are needed.")
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{what} is {described}: token ids are whole numbers, so convert it to an integer "
            "type, such as int32 or uint16."
        )
    low, high = int(array.min()), int(array.max())
    most = (vocabulary or MAX_VOCABULARY) - 1
    if low < 0 or high > most:
        wrong = low if low < 0 else high
        more = "" if vocabulary is None or wrong < 0 else ", or a larger vocabulary"
        raise InputError(f"{what} has the token {wrong}: ids from 0 to {most} are needed{more}.")
    return array


def check_vocabulary(vocabulary: Any) -> None:
    """Raises InputError unless it is a size that a vocabulary can have."""
    whole = isinstance(vocabulary, int | np.integer) and not isinstance(vocabulary, bool)
    if not whole or not 2 <= vocabulary <= MAX_VOCABULARY:
        raise InputError(
            f"vocabulary is {shown(vocabulary)}: a whole number from 2 to {MAX_VOCABULARY} is "
            "needed, one more than the highest token id, or none, to infer it."
        )


def _digest(array: Ids) -> str:
    """Sha256, hex, of the ids as int32, so that their type makes no difference."""
    digest = hashlib.sha256()
    for start in range(0, len(array), DIGESTED):
        digest.update(array[start : start + DIGESTED].astype("<i4").tobytes())
    return digest.hexdigest()
