"""Triggers: the rules that say which events launch whom, the dispatch of pinned cards, and the launch itself."""
