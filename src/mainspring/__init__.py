"""Mainspring."""
