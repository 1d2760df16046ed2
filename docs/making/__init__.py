"""What docs/generate.py makes its pages with, a page a module."""
