"""Texts as numbers: words, tf-idf rows, token rows, word vectors."""
