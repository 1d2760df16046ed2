-- People, agents and their tokens; boards and cards; rules; runs and runners. All tenant-first, like the engine's own tables.

alter table mainspring.log_heads add column rules_seq bigint not null default 0;

create table mainspring.accounts (
    tenant_id  uuid not null references mainspring.tenants (id),
    id         uuid not null,
    kind       text not null check (kind in ('human', 'agent', 'system')),
    handle     text not null check (handle ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    name       text not null check (length(name) <= 200),
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, id),
    constraint accounts_handle unique (tenant_id, handle)
);

create table mainspring.agents (
    tenant_id  uuid not null,
    id         uuid not null,
    slots      integer not null default 1 check (slots between 1 and 1000),
    paused     boolean not null default false,
    wake       boolean not null default false,
    version    bigint not null default 1,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, id),
    foreign key (tenant_id, id) references mainspring.accounts (tenant_id, id)
);

create table mainspring.runners (
    tenant_id    uuid not null references mainspring.tenants (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    incarnation  uuid not null,
    agents       uuid[] not null default '{}',
    slots        integer not null default 1 check (slots between 1 and 1000),
    draining     boolean not null default false,
    created_at   timestamptz not null default clock_timestamp(),
    last_seen_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, id),
    constraint runners_name unique (tenant_id, name)
);

create table mainspring.boards (
    tenant_id   uuid not null references mainspring.tenants (id),
    id          uuid not null,
    key         text not null check (key ~ '^[A-Z][A-Z0-9]{0,9}$'),
    name        text not null check (length(name) between 1 and 200),
    -- ordered: [{"name": "ready", "eligible": true, "terminal": false}, ...]
    states      jsonb not null,
    -- {run state: card state}
    reflect     jsonb not null default '{}',
    next_number integer not null default 1 check (next_number > 0),
    version     bigint not null default 1,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (tenant_id, id),
    constraint boards_key unique (tenant_id, key)
);

create table mainspring.cards (
    tenant_id          uuid not null,
    id                 uuid not null,
    board_id           uuid not null,
    number             integer not null check (number > 0),
    title              text not null check (length(title) between 1 and 200),
    body               text not null default '' check (length(body) <= 262144),
    state              text not null check (length(state) between 1 and 64),
    state_version      bigint not null default 1 check (state_version > 0),
    agent_id           uuid,
    assignee_id        uuid,
    priority           integer not null default 0 check (priority between -1000 and 1000),
    fields             jsonb not null default '{}',
    version            bigint not null default 1 check (version > 0),
    -- the card version at which (eligible and pinned) last became true or its pin changed, and that event's seq
    eligible_version   bigint,
    eligible_seq       bigint,
    dispatched_version bigint,
    created_by         uuid,
    created_at         timestamptz not null default clock_timestamp(),
    updated_at         timestamptz not null default clock_timestamp(),
    deleted_at         timestamptz,
    primary key (tenant_id, id),
    constraint cards_number unique (tenant_id, board_id, number),
    foreign key (tenant_id, board_id) references mainspring.boards (tenant_id, id),
    foreign key (tenant_id, agent_id) references mainspring.agents (tenant_id, id),
    foreign key (tenant_id, assignee_id) references mainspring.accounts (tenant_id, id),
    -- I-17: nothing is dispatched that was not eligible
    constraint cards_dispatched check (dispatched_version is null or dispatched_version <= eligible_version)
) with (fillfactor = 80);
create index cards_board on mainspring.cards (tenant_id, board_id, state, id) where deleted_at is null;
create index cards_undispatched on mainspring.cards (tenant_id, id)
    where eligible_version is not null and deleted_at is null
      and (dispatched_version is null or dispatched_version < eligible_version);

create table mainspring.card_labels (
    tenant_id uuid not null,
    card_id   uuid not null,
    label     text not null check (length(label) between 1 and 64 and label = lower(btrim(label))),
    primary key (tenant_id, card_id, label),
    foreign key (tenant_id, card_id) references mainspring.cards (tenant_id, id)
);
create index card_labels_label on mainspring.card_labels (tenant_id, label, card_id);

create table mainspring.rules (
    tenant_id  uuid not null references mainspring.tenants (id),
    id         uuid not null,
    name       text not null check (length(name) between 1 and 200),
    enabled    boolean not null,
    version    integer not null check (version > 0),
    created_at timestamptz not null default clock_timestamp(),
    deleted_at timestamptz,
    primary key (tenant_id, id)
);
create unique index rules_name on mainspring.rules (tenant_id, lower(name)) where deleted_at is null;

-- A version judges the events with from_seq < seq <= until_seq; from_seq is the seq of its own rule.changed event.
-- from_seq is null only between its insert and the stamp in the same transaction.
create table mainspring.rule_versions (
    tenant_id  uuid not null,
    rule_id    uuid not null,
    version    integer not null check (version > 0),
    enabled    boolean not null,
    terms      jsonb not null,
    action     jsonb not null,
    options    jsonb not null,
    from_seq   bigint,
    until_seq  bigint,
    actor_id   uuid,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, rule_id, version),
    foreign key (tenant_id, rule_id) references mainspring.rules (tenant_id, id),
    constraint rule_versions_span check (until_seq is null or until_seq >= from_seq)
);
create index rule_versions_span on mainspring.rule_versions (tenant_id, until_seq, from_seq);

create table mainspring.runs (
    tenant_id          uuid not null,
    id                 uuid not null,
    agent_id           uuid not null,
    card_id            uuid,
    card_key           text,
    -- the launch that made it: values, not a foreign key, since finished effects are trimmed earlier
    effect_kind        text not null,
    effect_key         text not null,
    event_seq          bigint,
    rule_id            uuid,
    rule_version       integer,
    card_state_version bigint,
    state              text not null check (state in
        ('queued', 'claimed', 'running', 'needs_input', 'done', 'blocked', 'failed', 'cancelled', 'lost', 'discarded')),
    attempts           integer not null default 0 check (attempts >= 0),
    claim_id           uuid,
    runner_id          uuid,
    incarnation        uuid,
    slot               integer,
    lease_until        timestamptz,
    not_before         timestamptz not null default clock_timestamp(),
    cancel_requested   boolean not null default false,
    prompt             text not null check (length(prompt) <= 262144),
    -- what a runner is told about why it runs: kind, seq and summary of the triggering event
    trigger            jsonb not null default '{}',
    via                uuid[] not null default '{}',
    depth              integer not null default 0,
    trust              text not null,
    outcome            text,
    error              text,
    log_bytes          bigint not null default 0,
    log_lines          bigint not null default 0,
    log_truncated      boolean not null default false,
    -- lines taken from the present claim: a batch sent again is not written again
    claim_lines        bigint not null default 0,
    created_at         timestamptz not null default clock_timestamp(),
    started_at         timestamptz,
    ended_at           timestamptz,
    primary key (tenant_id, id),
    -- I-8: one run for one launch
    constraint runs_launch unique (tenant_id, effect_kind, effect_key),
    foreign key (tenant_id, agent_id) references mainspring.agents (tenant_id, id),
    foreign key (tenant_id, card_id) references mainspring.cards (tenant_id, id),
    constraint runs_lease check ((state in ('claimed', 'running')) = (lease_until is not null)),
    constraint runs_claim check (state not in ('claimed', 'running') or claim_id is not null),
    constraint runs_ended check (
        (state in ('done', 'blocked', 'failed', 'cancelled', 'lost', 'discarded')) = (ended_at is not null))
) with (fillfactor = 70);
create index runs_queued on mainspring.runs (tenant_id, agent_id, not_before, id) where state = 'queued';
create index runs_leased on mainspring.runs (lease_until) where state in ('claimed', 'running');
create index runs_live on mainspring.runs (tenant_id, agent_id) where state in ('queued', 'claimed', 'running', 'needs_input');
create index runs_held on mainspring.runs (tenant_id, agent_id) where state in ('claimed', 'running');
-- a slot of a runner holds one run at most: the lost answer to a claim is found again by it
create unique index runs_slot on mainspring.runs (tenant_id, runner_id, incarnation, slot) where state in ('claimed', 'running');
create index runs_card on mainspring.runs (tenant_id, card_id, created_at, id);
create index runs_dead on mainspring.runs (tenant_id, ended_at, id) where state in ('failed', 'lost');

-- every attempt of a run, and how it ended
create table mainspring.run_attempts (
    tenant_id  uuid not null,
    run_id     uuid not null,
    claim_id   uuid not null,
    n          integer not null check (n > 0),
    runner     text not null,
    started_at timestamptz not null,
    ended_at   timestamptz,
    outcome    text,
    error      text,
    primary key (tenant_id, run_id, claim_id),
    foreign key (tenant_id, run_id) references mainspring.runs (tenant_id, id)
);

create table mainspring.run_log (
    tenant_id uuid not null,
    run_id    uuid not null,
    n         bigint not null,
    at        timestamptz not null default clock_timestamp(),
    text      text not null,
    primary key (tenant_id, run_id, n),
    foreign key (tenant_id, run_id) references mainspring.runs (tenant_id, id)
);

create table mainspring.tokens (
    tenant_id  uuid not null,
    id         uuid not null,
    account_id uuid not null,
    kind       text not null check (kind in ('user', 'agent', 'runner', 'run')),
    role       text not null check (role in ('viewer', 'member', 'operator')),
    extras     text[] not null default '{}',
    prefix     text not null,
    sha256     bytea not null check (length(sha256) = 32),
    -- a runner's token names the agents it may run; a run's token is valid only for one claim of one run
    agents     uuid[] not null default '{}',
    run_id     uuid,
    claim_id   uuid,
    demo       boolean not null default false,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, account_id) references mainspring.accounts (tenant_id, id),
    foreign key (tenant_id, run_id) references mainspring.runs (tenant_id, id),
    constraint tokens_run check ((kind = 'run') = (run_id is not null and claim_id is not null))
);
create unique index tokens_sha256 on mainspring.tokens (sha256);
create index tokens_run on mainspring.tokens (tenant_id, run_id) where run_id is not null;
