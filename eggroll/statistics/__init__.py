"""statistics.jsonl: what happens inside a run, looked at every so many updates, and its warnings.

Nothing here changes a weight: all is read from what an update left. docs/running.md describes the
file.
"""
