-- Keys by which a command, or an event from outside, is carried out once however often it is sent.

-- The answer to a command stands beside what the command wrote, in one transaction. That it is being carried out is an
-- advisory lock, never a row: a crash leaves nothing behind.
create table mainspring.idempotency (
    tenant_id  uuid not null references mainspring.tenants (id),
    -- the account that sent it, or the run whose token did
    caller_id  uuid not null,
    key        text not null check (length(key) between 1 and 200),
    -- method, address and body: the same key with another request is a mistake
    request    bytea not null check (length(request) = 32),
    status     integer not null check (status between 200 and 399),
    headers    jsonb not null,
    body       text not null,
    -- the answer held a secret, which is kept nowhere
    withheld   boolean not null default false,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    primary key (tenant_id, caller_id, key)
);
create index idempotency_expired on mainspring.idempotency (expires_at);

-- A custom event's own key, in its tenant, for as long as the log is kept. seq is null only between the insert and the stamp in
-- the same transaction.
create table mainspring.event_keys (
    tenant_id uuid not null references mainspring.tenants (id),
    key       text not null check (length(key) between 1 and 200),
    request   bytea not null check (length(request) = 32),
    seq       bigint,
    primary key (tenant_id, key)
);

alter table mainspring.idempotency enable row level security;
alter table mainspring.idempotency force row level security;
create policy one_tenant on mainspring.idempotency to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.idempotency to mainspring_system using (true);
grant select, insert, update, delete on mainspring.idempotency to mainspring_app, mainspring_system;

alter table mainspring.event_keys enable row level security;
alter table mainspring.event_keys force row level security;
create policy one_tenant on mainspring.event_keys to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.event_keys to mainspring_system using (true);
grant select, insert, update, delete on mainspring.event_keys to mainspring_app, mainspring_system;
