-- Limits of rules: a rule may be paused, a launch may wait its turn, a run may wait for a runner only so long, and every
-- launch is noted for as long as a limit counts it.

alter table mainspring.rules
    add column paused_at      timestamptz,
    add column paused_because text check (length(paused_because) between 1 and 1000),
    -- what is owed for events up to these seqs was told, at a resume, to run whatever the limits say, or was given up
    add column waived_seq     bigint not null default 0,
    add column given_up_seq   bigint not null default 0,
    add constraint rules_paused check ((paused_at is null) = (paused_because is null)),
    -- a rule that is off or gone drops what it owes: nothing of it may wait for a resume that never comes
    add constraint rules_paused_is_on check (paused_at is null or (enabled and deleted_at is null));

alter table mainspring.runs
    add column exclusive              boolean not null default false,
    add column queued_timeout_seconds double precision check (queued_timeout_seconds > 0),
    add column queued_until           timestamptz;
-- the net under `while_running`: launches decide under the card's lock; one that did not would be refused here
create unique index runs_exclusive on mainspring.runs (tenant_id, card_id, agent_id)
    where exclusive and state in ('queued', 'claimed', 'running', 'needs_input');
create index runs_overdue on mainspring.runs (queued_until) where state = 'queued' and queued_until is not null;

-- what a rule still owes, by card: which launch is the last that waits, and what a resume sets free
create index effects_waiting on mainspring.effects (tenant_id, rule_id, (payload ->> 'card_id'), event_seq)
    where rule_id is not null and state in ('pending', 'claimed');

-- One row for each launch or promotion that was carried out, until no limit counts it any more.
create table mainspring.firings (
    tenant_id  uuid not null references mainspring.tenants (id),
    effect_id  uuid not null,
    kind       text not null,
    -- null: the card's pin launched, and no rule
    rule_id    uuid,
    card_id    uuid,
    agent_id   uuid not null,
    event_seq  bigint not null,
    fired_at   timestamptz not null default clock_timestamp(),
    kept_until timestamptz not null,
    primary key (tenant_id, effect_id)
);
create index firings_rule on mainspring.firings (tenant_id, rule_id, fired_at) where rule_id is not null;
create index firings_agent on mainspring.firings (tenant_id, agent_id, fired_at) where kind = 'launch';

alter table mainspring.firings enable row level security;
alter table mainspring.firings force row level security;
create policy one_tenant on mainspring.firings to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.firings to mainspring_system using (true);
grant select, insert, update, delete on mainspring.firings to mainspring_app, mainspring_system;
