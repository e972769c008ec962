"""The compiled parser of sparse rows: bytes in, ids and values out, no Python object per value."""

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit

OK, BAD_LABEL, LABEL_RANGE, BAD_FEATURE, FEATURE_RANGE, BAD_VALUE, NOT_FINITE = range(7)
LABEL_FAULTS = (BAD_LABEL, LABEL_RANGE)

_TAB, _LF, _CR, _SPACE = 9, 10, 13, 32
_PLUS, _COMMA, _MINUS, _DOT, _ZERO, _NINE, _COLON = 43, 44, 45, 46, 48, 57, 58
_BIG = 1 << 40
_MOST = 308
# Up to 10^22 exact, so that a number of usual length is rounded once, in the division.
_POWERS = np.array([float(f"1e{i}") for i in range(_MOST + 1)])


@njit(cache=True, nogil=True)
def _parse_id(text: NDArray[np.uint8], i: int) -> tuple[int, int]:
    """Return the whole number at `i` and where it ends; the same `i` when there is none."""
    start, sign = i, 1
    if text[i] == _MINUS:
        sign = -1
        i += 1
    digits, value = i, 0
    while _ZERO <= text[i] <= _NINE:
        if value < _BIG:
            value = value * 10 + (int(text[i]) - _ZERO)
        i += 1
    if i == digits:
        return 0, start
    return (value if sign > 0 else -1 - value), i


@njit(cache=True, nogil=True)
def _parse_value(text: NDArray[np.uint8], i: int) -> tuple[float, int]:
    """Return the decimal number at `i` and where it ends; the same `i` when there is none."""
    start, sign = i, 1.0
    if text[i] == _MINUS or text[i] == _PLUS:
        sign = -1.0 if text[i] == _MINUS else 1.0
        i += 1
    mantissa, exponent, n_digits, after_dot = 0, 0, 0, False
    while _ZERO <= text[i] <= _NINE or (text[i] == _DOT and not after_dot):
        if text[i] == _DOT:
            after_dot = True
        else:
            n_digits += 1
            # 18 digits are more than a float32 can tell apart; later ones only shift.
            if mantissa < 100_000_000_000_000_000:
                mantissa = mantissa * 10 + (int(text[i]) - _ZERO)
                exponent -= after_dot
            else:
                exponent += not after_dot
        i += 1
    if n_digits == 0:
        return 0.0, start
    if text[i] | 32 == 101:  # e or E
        begin = i + 2 if text[i + 1] == _PLUS else i + 1
        power, end = _parse_id(text, begin)
        if end > begin:
            exponent += power if power >= 0 else power + 1
            i = end
    if exponent < 0:
        return sign * mantissa / _POWERS[min(-exponent, _MOST)], i
    return sign * mantissa * _POWERS[min(exponent, _MOST)], i


@njit(cache=True, nogil=True)
def parse_rows(
    text: NDArray[np.uint8],
    n_labels: int,
    n_features: int,
    labels: NDArray[np.int32],
    features: NDArray[np.int32],
    values: NDArray[np.float32],
    label_counts: NDArray[np.int32],
    feature_counts: NDArray[np.int32],
) -> tuple[int, int]:
    """Fill labels, features, values, and how many labels and features each row has.

    `text` is whole lines, the last one closed; n_labels < 0 means rows without a label part.
    Stops after as many rows as there are counts. Returns OK and where it stopped, or the
    fault and where it stands.
    """
    i, n_label, n_feature = 0, 0, 0
    for row in range(len(label_counts)):
        first_label, first_feature = n_label, n_feature
        j = i
        while text[j] > _SPACE and text[j] != _COLON:
            j += 1
        if n_labels >= 0 and j > i and text[j] != _COLON:
            while True:
                label, end = _parse_id(text, i)
                if end == i or (text[end] > _SPACE and text[end] != _COMMA):
                    return BAD_LABEL, i
                if label < 0 or label >= n_labels:
                    return LABEL_RANGE, i
                labels[n_label] = label
                n_label += 1
                i = end + 1
                if text[end] != _COMMA:
                    i = end
                    break
        while True:
            while text[i] == _SPACE or text[i] == _TAB or text[i] == _CR:
                i += 1
            if text[i] == _LF:
                break
            feature, end = _parse_id(text, i)
            if end == i or text[end] != _COLON:
                return BAD_FEATURE, i
            if feature < 0 or feature >= n_features:
                return FEATURE_RANGE, i
            value, stop = _parse_value(text, end + 1)
            if stop == end + 1 or text[stop] > _SPACE:
                return _value_fault(text, end + 1), i
            if not np.isfinite(np.float32(value)):
                return NOT_FINITE, i
            features[n_feature] = feature
            values[n_feature] = value
            n_feature += 1
            i = stop
        i += 1
        label_counts[row] = n_label - first_label
        feature_counts[row] = n_feature - first_feature
    return OK, i


@njit(cache=True, nogil=True)
def _value_fault(text: NDArray[np.uint8], i: int) -> int:
    """Tell nan and inf (in any case, with any sign) from what is no number at all."""
    if text[i] == _MINUS or text[i] == _PLUS:
        i += 1
    first = text[i] | 32
    return NOT_FINITE if first == 110 or first == 105 else BAD_VALUE
