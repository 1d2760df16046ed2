-- The engine's own tables: the log, its cursors, the effects, and the index of tenants that have something due.
-- tenant_id leads every key, so that one tenant's rows lie together and every foreign key stays inside its tenant.

create table mainspring.engine (
    one            boolean primary key default true check (one),
    engine_version integer not null check (engine_version > 0)
);
insert into mainspring.engine (engine_version) values (1);

create table mainspring.tenants (
    id         uuid primary key,
    name       text not null check (length(name) between 1 and 200),
    created_at timestamptz not null default clock_timestamp()
);

-- fillfactor: both are updated at every append or drain, and stay on their page (HOT) when it has room
create table mainspring.log_heads (
    tenant_id uuid primary key references mainspring.tenants (id),
    head      bigint not null default 0 check (head >= 0)
) with (fillfactor = 50);

create table mainspring.cursors (
    tenant_id uuid not null references mainspring.tenants (id),
    name      text not null,
    position  bigint not null default 0 check (position >= 0),
    primary key (tenant_id, name)
) with (fillfactor = 50);

create table mainspring.events (
    tenant_id   uuid not null,
    seq         bigint not null check (seq > 0),
    id          uuid not null,
    kind        text not null check (length(kind) <= 100),
    subject     text not null check (length(subject) <= 200),
    actor_id    uuid,
    data        jsonb not null,
    cause_seq   bigint,
    via         uuid[] not null default '{}',
    depth       integer not null default 0 check (depth >= 0),
    trust       text not null check (trust in ('stranger', 'forge', 'agent', 'member')),
    traceparent text,
    occurred_at timestamptz not null,
    primary key (tenant_id, seq)
);
create index events_subject on mainspring.events (tenant_id, subject, seq);
create index events_kind on mainspring.events (tenant_id, kind, seq);
create index events_cause on mainspring.events (tenant_id, cause_seq) where cause_seq is not null;

create table mainspring.effects (
    tenant_id        uuid not null,
    id               uuid not null,
    kind             text not null check (length(kind) between 1 and 64),
    family           text not null check (family in ('executed', 'offered')),
    key              text not null check (length(key) between 1 and 300),
    event_seq        bigint,
    rule_id          uuid,
    rule_version     integer,
    recipient_id     uuid,
    topic_id         uuid,
    target           text not null default '',
    payload          jsonb not null,
    state            text not null check (state in ('pending', 'claimed', 'done', 'dropped', 'dead', 'discarded')),
    attempts         integer not null default 0 check (attempts >= 0),
    crashes          integer not null default 0 check (crashes >= 0),
    deferrals        integer not null default 0 check (deferrals >= 0),
    deferred_since   timestamptz,
    epoch            integer not null default 0 check (epoch >= 0),
    claim_id         uuid,
    worker           text,
    claimed_at       timestamptz,
    lease_until      timestamptz,
    not_before       timestamptz not null,
    cancel_requested boolean not null default false,
    outcome          text,
    error            text,
    created_at       timestamptz not null default clock_timestamp(),
    settled_at       timestamptz,
    primary key (tenant_id, id),
    -- I-3: an effect is named by tenant, kind and key
    constraint effects_key unique (tenant_id, kind, key),
    -- I-5: only a claimed row has a lease; a final row has neither a lease nor a claim that could settle it again
    constraint effects_lease check ((state = 'claimed') = (lease_until is not null)),
    constraint effects_claim check (state <> 'claimed' or claim_id is not null),
    constraint effects_settled check ((state in ('done', 'dropped', 'dead', 'discarded')) = (settled_at is not null))
) with (fillfactor = 70);
-- live rows alone are indexed for claims: finished ones may number millions without slowing them
create index effects_due on mainspring.effects (tenant_id, family, not_before, id) where state = 'pending';
create index effects_alone on mainspring.effects (not_before) where state = 'pending' and family = 'executed' and crashes >= 2;
create index effects_leased on mainspring.effects (lease_until) where state = 'claimed';
create index effects_dead on mainspring.effects (tenant_id, settled_at, id) where state = 'dead';
create index effects_final on mainspring.effects (settled_at) where state in ('done', 'dropped', 'discarded');
create index effects_rule on mainspring.effects (tenant_id, rule_id, id) where rule_id is not null;
create index effects_event on mainspring.effects (tenant_id, event_seq) where event_seq is not null;

create table mainspring.effect_attempts (
    tenant_id  uuid not null,
    effect_id  uuid not null,
    claim_id   uuid not null,
    n          integer not null check (n > 0),
    epoch      integer not null,
    worker     text not null,
    started_at timestamptz not null,
    ended_at   timestamptz not null,
    outcome    text not null,
    error      text,
    primary key (tenant_id, effect_id, claim_id),
    foreign key (tenant_id, effect_id) references mainspring.effects (tenant_id, id) on delete cascade
);

-- Where a claim looks first. It may be early, never late: owing lowers next_due and raises bumps; raising next_due
-- is only allowed while bumps is what the one who raises it has read.
create table mainspring.due_tenants (
    tenant_id uuid not null,
    family    text not null check (family in ('executed', 'offered')),
    next_due  timestamptz not null,
    bumps     bigint not null default 0,
    primary key (tenant_id, family)
) with (fillfactor = 50);
create index due_tenants_next on mainspring.due_tenants (family, next_due);

-- Batches name their rows by tenant and id. Statistics taken while every tenant has one row say that the tenant alone finds
-- it, and once one of them has many, all of them are read for each row of a batch: a tenant may have a tenth of all rows.
alter table mainspring.effects alter column tenant_id set (n_distinct = 10);
