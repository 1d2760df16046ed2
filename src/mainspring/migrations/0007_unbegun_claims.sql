-- Claims in a row that ended in silence before their first heartbeat. They spend no attempt; a run that has too many of them
-- may be what ends its runners.
alter table mainspring.runs add column unbegun integer not null default 0 check (unbegun >= 0);
