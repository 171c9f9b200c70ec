"""Corpora and their codings: streams of tokens from text, tables, the hub and numbers."""
