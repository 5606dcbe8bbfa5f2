"""Restricts answers: JSON Schemas, patterns, choices and grammars become masks over the vocabulary, by llguidance."""
