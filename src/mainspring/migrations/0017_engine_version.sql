-- Settled messages owe deliveries: an older drain would move past them.
update mainspring.engine set engine_version = 3 where engine_version < 3;
