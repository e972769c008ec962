"""The encoding of a file of text, told from its bytes.

A byte order mark decides; without one, zero bytes at every second place mean UTF-16. Everything
else is UTF-8 unless it cannot be. What cannot be UTF-8 is taken for cp1252, Windows' Western
European encoding, where it reads like a text of such a language: Latin-1 has the same letters, and
control characters where cp1252 has the euro sign, dashes and curly quotes. A text in which most
letters are beyond ASCII is in another alphabet, and only its owner knows the encoding.
"""

import codecs

UTF8 = "utf-8"
WESTERN = "cp1252"
_MARKS = (  # the longer first: UTF-32 begins as UTF-16 does
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_SAMPLE = 1 << 12
_MOST_FOREIGN = (
    0.4  # share of letters beyond ASCII; German has 2 %, Finnish 5 %, Russian nearly all
)


def guess_encoding(head: bytes) -> str:
    """Return the encoding of a text that begins with `head`, UTF-8 if nothing speaks against it."""
    marked = _find_mark(head)
    if marked is not None:
        return marked
    try:
        codecs.getincrementaldecoder(UTF8)().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return WESTERN if looks_western(head) else UTF8
    return UTF8


def _find_mark(head: bytes) -> str | None:
    """Return the encoding that a byte order mark, or every second byte being zero, tells."""
    marked = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if marked is not None:
        return marked
    sample = head[:_SAMPLE]
    even, odd = sample[::2], sample[1::2]
    n_even, n_odd = even.count(0), odd.count(0)
    # Western texts have a zero in nearly every pair, always on the same side.
    if n_odd > 0.7 * len(odd) and n_even == 0:
        return "utf-16-le"
    if n_even > 0.7 * len(even) and n_odd == 0:
        return "utf-16-be"
    return None


def looks_western(block: bytes) -> bool:
    """Return whether bytes that are no UTF-8 read like a text in cp1252."""
    try:
        text = block.decode(WESTERN)
    except UnicodeDecodeError:  # five bytes have no meaning there
        return False
    damaged = block.decode(errors="replace")
    n_bad = damaged.count("\ufffd")
    n_good = sum(not char.isascii() for char in damaged) - n_bad
    if n_good > n_bad or any(ord(char) < 32 and char not in "\t\n\r\f" for char in text):
        return False
    letters = sum(map(str.isalpha, text))
    foreign = sum(char.isalpha() and not char.isascii() for char in text)
    return foreign <= max(_MOST_FOREIGN * letters, 1)
