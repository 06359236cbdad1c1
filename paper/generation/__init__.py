"""Texts from facts: a language model trained privately on E2E NLG, and without privacy."""
