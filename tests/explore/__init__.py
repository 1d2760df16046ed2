"""Every state that the tables of effects, runs and cursors can come to, one after the other."""
