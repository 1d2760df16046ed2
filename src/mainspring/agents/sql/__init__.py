"""The agents room's statements."""
