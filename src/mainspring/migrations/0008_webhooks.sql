-- What a rule's webhook is signed with: made with the rule, shown once, and needed at every call, so it is kept as it is.
-- It stands apart from the rules: nothing that reads, shows or exports a rule comes by it.

create table mainspring.webhook_secrets (
    tenant_id  uuid not null references mainspring.tenants (id),
    rule_id    uuid not null,
    secret     text not null check (secret like 'whsec\_%'),
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, rule_id),
    foreign key (tenant_id, rule_id) references mainspring.rules (tenant_id, id) on delete cascade
);

alter table mainspring.webhook_secrets enable row level security;
alter table mainspring.webhook_secrets force row level security;
create policy one_tenant on mainspring.webhook_secrets to mainspring_app
    using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
create policy all_tenants on mainspring.webhook_secrets to mainspring_system using (true);
grant select, insert, update, delete on mainspring.webhook_secrets to mainspring_app, mainspring_system;
