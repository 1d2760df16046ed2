"""Statements of keyed commands."""
