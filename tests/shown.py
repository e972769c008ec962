"""What tests of the page share: a text, and how to find the row of a label."""

TEXT = "hops and malt, then yeast"


def row(label, model="planted"):
    """Return the selector of a label's row in the column of a model."""
    return f"#columns li[data-label='{label}'][data-model='{model}']"


def write(page, text, label):
    """Write a text, and wait until this label is shown with all that is known of it."""
    page.fill("#text", text)
    page.wait_for_selector(f"{row(label)} .facts:not(:empty)")
