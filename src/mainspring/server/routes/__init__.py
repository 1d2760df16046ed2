"""One module a noun, each exporting `router`."""
