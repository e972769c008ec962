"""Documents to label: any readable file, with or without labels, or a stream."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import scipy.sparse as sp

from longtail.data.formats import Format, recognize, text_batches
from longtail.data.source import Source

BATCH = 8192


def read_documents(file: str | Path | BinaryIO) -> Iterator[list[str] | sp.csr_matrix]:
    """Yield batches of documents from a file or a binary stream such as `sys.stdin.buffer`.

    A batch is a list of texts, or rows X from a sparse file (`N D L`) or a matrix file (`N D`).
    Labels may be absent and are not looked at. What is in no other format is plain text, a document
    a line, in which an empty line is an empty document. Lines of a stream go out as they come in.
    """
    with Source(file) as source:
        kind = recognize(source)
        if kind in (Format.SPARSE, Format.MATRIX):
            from longtail.data.sparse import row_batches  # compiles its parser on import

            yield from row_batches(source)
            return
        for documents in text_batches(source, kind, labels=False):
            texts = (text for _, text, _ in documents)
            while batch := list(islice(texts, BATCH)):
                yield batch
