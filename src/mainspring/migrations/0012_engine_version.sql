-- Rules that promote, call webhooks, ask for fields, rest, count and take turns: a server that does not know them would judge events by
-- what it knows of a rule, and move the cursor past them. From here on it leaves the log to those that do.
update mainspring.engine set engine_version = 2 where engine_version < 2;
