"""Channels, topics, messages; sessions, and the delivery of what a settled message owes."""
