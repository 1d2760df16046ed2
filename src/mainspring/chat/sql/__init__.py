"""The boards room's named statements."""
