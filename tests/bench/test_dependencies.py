"""The data set of packages and what they depend on."""

from bench.dependencies import divide, drop_rare, read_packages

ANSWER = """Package: editor-gtk
Depends: libc6 (>= 2.35), libgtk | libgtk-old, editor-common:any
Pre-Depends: dpkg
Description-en: Edits texts
 On the screen,
 .
 with menus.
Tag: role::program


Package: editor-common
Description: Files of the editor
Depends: libc6

Package: editor-gtk
Depends: libc6

Package: leaf
Description: Depends on nothing
"""


def test_packages_become_documents():
    first, second = read_packages(ANSWER)
    assert first.text == "editor gtk. Edits texts On the screen, . with menus."
    assert first.labels == ["dpkg", "editor-common", "libc6", "libgtk"]
    assert (second.name, second.labels) == ("editor-common", ["libc6"])


def test_rare_labels_go_and_names_decide_on_the_split():
    documents = drop_rare(read_packages(ANSWER), 2)
    assert [each.labels for each in documents] == [["libc6"], ["libc6"]]
    assert drop_rare(documents, 3) == []
    splits = divide(documents)
    assert sorted(each.name for split in splits.values() for each in split) == [
        "editor-common",
        "editor-gtk",
    ]
    assert divide(documents) == splits
