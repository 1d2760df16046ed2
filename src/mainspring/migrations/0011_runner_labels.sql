-- What a runner has, and what a run needs of the one that takes it: a run goes to a runner that has all of its labels.
alter table mainspring.runners
    add column labels text[] not null default '{}';
alter table mainspring.runs
    add column runner_labels text[] not null default '{}';
