"""The webhooks' named statements."""
