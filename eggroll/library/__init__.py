"""The library for Python programs: Trainer, members, language models, worlds."""
