-- Long decisions on many dead letters, who did what, and what the desk's and the rules' questions are answered by.

-- A job that goes through the desk step by step: each step is an effect of kind `operation`, and one transaction.
create table mainspring.operations (
    tenant_id       uuid not null references mainspring.tenants (id),
    id              uuid not null,
    verb            text not null check (verb in ('replay', 'discard')),
    account_id      uuid,
    actor           jsonb not null,
    -- which letters are meant, of those that lay on the desk when it began; null is any
    kind            text,
    cause           text,
    new_key         boolean,
    reason          text,
    rate_per_second double precision check (rate_per_second > 0),
    state           text not null default 'running' check (state in ('running', 'done', 'stopped')),
    -- how many were meant when it began; null when they were not counted
    total           bigint check (total >= 0),
    done            bigint not null default 0 check (done >= 0),
    skipped         bigint not null default 0 check (skipped >= 0),
    step            integer not null default 0 check (step >= 0),
    -- how far it has looked, in the order of the letters' events
    after_age       bigint not null default -1,
    after_id        uuid not null default '00000000-0000-0000-0000-000000000000',
    created_at      timestamptz not null default clock_timestamp(),
    ended_at        timestamptz,
    ended_by        text,
    primary key (tenant_id, id),
    constraint operations_ended check ((state = 'running') = (ended_at is null)),
    constraint operations_reason check ((verb = 'discard') = (reason is not null))
);

-- What people have done that asks for an operator, each beside what it wrote. Kept for ever.
create table mainspring.audit (
    tenant_id  uuid not null references mainspring.tenants (id),
    id         uuid not null,
    at         timestamptz not null default clock_timestamp(),
    account_id uuid,
    handle     text not null,
    token_id   uuid not null,
    verb       text not null check (length(verb) <= 100),
    subject    text not null default '' check (length(subject) <= 300),
    asked      jsonb not null,
    request_id text not null default '' check (length(request_id) <= 100),
    primary key (tenant_id, id)
);

alter table mainspring.operations enable row level security;
alter table mainspring.operations force row level security;
create policy one_tenant on mainspring.operations to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.operations to mainspring_system using (true);
grant select, insert, update, delete on mainspring.operations to mainspring_app, mainspring_system;

alter table mainspring.audit enable row level security;
alter table mainspring.audit force row level security;
create policy one_tenant on mainspring.audit to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.audit to mainspring_system using (true);
-- nobody rewrites what was done
grant select, insert on mainspring.audit to mainspring_app, mainspring_system;

-- Dead letters in the order of their events, which is the order in which they are decided on.
create index effects_dead_age on mainspring.effects
    (tenant_id, (case when event_seq is null then 9223372036854775807 else event_seq end), id) where state = 'dead';
create index runs_dead_age on mainspring.runs
    (tenant_id, (case when event_seq is null then 9223372036854775807 else event_seq end), id) where state in ('failed', 'lost');

-- Runs by what they are asked for.
create index runs_card_key on mainspring.runs (tenant_id, card_key, id) where card_key is not null;
create index runs_agent on mainspring.runs (tenant_id, agent_id, id);

-- Rules by their name. lower() may not look at rows behind a wall before the wall has: an index on lower(name) is never used
-- there, one on a column that holds it is.
alter table mainspring.rules add column folded text generated always as (lower(name)) stored;
drop index mainspring.rules_name;
create unique index rules_name on mainspring.rules (tenant_id, folded) where deleted_at is null;
create index rules_name_ever on mainspring.rules (tenant_id, folded, created_at);
