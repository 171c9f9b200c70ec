"""Rewards of the experiment: an answer that is JSON and nothing else, and one of one word."""

import json


def as_json(prompt: str, answer: str) -> float:
    """1 if the answer is a JSON object; less if one stands among other text, or is begun."""
    text = answer.strip()
    at = text.find("{")
    if at < 0:
        return 0.0
    try:
        _, end = json.JSONDecoder().raw_decode(text, at)
    except ValueError:
        return 0.1 + 0.1 * (at == 0)
    if len(text) == end - at:
        return 1.0
    return 0.3 + 0.3 * (end - at) / len(text) + 0.2 * (at == 0)


def one_word(prompt: str, answer: str) -> float:
    """1 for one word, less by how many there are."""
    words = answer.split()
    return 1.0 / len(words) if words else 0.0
