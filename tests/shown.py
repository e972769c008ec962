"""What tests of the page share: a text, a file, and how to find the row of a label."""

import io
import zipfile

TEXT = "hops and malt, then yeast"
ROWS = "#columns li[data-label]"  # of all labels; lists in their details have rows, too


def row(label, model="planted"):
    """Return the selector of a label's row in the column of a model."""
    return f"#columns li[data-label='{label}'][data-model='{model}']"


def write(page, text, label):
    """Write a text, and wait until this label is shown with all that is known of it."""
    page.fill("#text", text)
    page.wait_for_selector(f"{row(label)} .facts:not(:empty)")


def make_docx(*paragraphs):
    """Return a .docx file."""
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = "".join(f"<w:p><w:r><w:t>{each}</w:t></w:r></w:p>" for each in paragraphs)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as held:
        held.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>',
        )
    return file.getvalue()
