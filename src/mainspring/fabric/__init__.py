"""The event fabric: tells every instance that a log has grown. It carries references and never what they refer to.

It may lose, repeat, reorder or forge everything it carries, and only latency may suffer: what is owed stands in the database, and the
floor tick finds it there. `port.py` is what the rest knows; `jetstream.py` and `memory.py` are behind it, and pass one suite of tests.
"""
