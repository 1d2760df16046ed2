-- Questions that runs ask of people. The run's row is locked before its asks: whoever answers, cancels or ends a run does so in turn.
create table mainspring.asks (
    tenant_id   uuid not null,
    id          uuid not null,
    run_id      uuid not null,
    -- the claim that asked, asked again, or was given the answer: what it knows it is not told twice
    claim_id    uuid not null,
    -- the runner's own name for this asking: sent again, it is the same
    request_id  uuid not null,
    question    text not null check (length(question) between 1 and 16384),
    -- none: any text is an answer
    options     text[] not null default '{}' check (cardinality(options) <= 20),
    -- the claim was given up for it: the answer queues the run again
    released    boolean not null,
    state       text not null check (state in ('open', 'answered', 'expired', 'closed')),
    answer      text check (length(answer) between 1 and 16384),
    answered_by uuid,
    -- why it was closed without an answer
    reason      text,
    asked_at    timestamptz not null default clock_timestamp(),
    expires_at  timestamptz,
    ended_at    timestamptz,
    primary key (tenant_id, id),
    constraint asks_request unique (tenant_id, run_id, request_id),
    foreign key (tenant_id, run_id) references mainspring.runs (tenant_id, id),
    foreign key (tenant_id, answered_by) references mainspring.accounts (tenant_id, id),
    constraint asks_answered check ((state = 'answered') = (answer is not null) and (answer is null) = (answered_by is null)),
    constraint asks_ended check ((state = 'open') = (ended_at is null)),
    -- nobody would tell a run that has no runner that its time is over
    constraint asks_released check (not released or expires_at is null)
);
create index asks_open on mainspring.asks (tenant_id, id) where state = 'open';

alter table mainspring.asks enable row level security;
alter table mainspring.asks force row level security;
create policy one_tenant on mainspring.asks to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.asks to mainspring_system using (true);
grant select, insert, update, delete on mainspring.asks to mainspring_app, mainspring_system;
