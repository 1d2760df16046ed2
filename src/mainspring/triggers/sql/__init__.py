"""The triggers room's named statements."""
