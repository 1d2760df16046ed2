"""Boards and their cards: the state that people and agents move, and the events those moves leave."""
