-- What a runner has, and what a run needs of the one that takes it: a run goes to a runner that has all of its labels.
alter table mainspring.runners
    add column labels text[] not null default '{}',
    -- when it said that it goes; one that does not is missed after a lease
    add column left_at timestamptz;
alter table mainspring.runs
    add column runner_labels text[] not null default '{}';
