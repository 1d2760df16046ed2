-- Which targets have failed of late: one row for each (tenant, target) that has since it last worked, and none for the others.

create table mainspring.breakers (
    tenant_id  uuid not null,
    target     text not null check (length(target) between 1 and 300),
    -- failures in a row; and how often in a row it was found down, 0 while the breaker is closed
    failures   integer not null default 0 check (failures >= 0),
    trips      integer not null default 0 check (trips >= 0),
    -- nobody tries until then; afterwards one does, the probe, and pushes it to the end of its own lease
    open_until timestamptz,
    down_since timestamptz,
    error      text,
    changed_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, target),
    constraint breakers_open check ((trips > 0) = (open_until is not null) and (trips > 0) = (down_since is not null))
) with (fillfactor = 50);

-- While a tenant has a target that is down, what it owes is looked for target by target, and what waits is not walked over.
create index effects_target on mainspring.effects (tenant_id, target, not_before, id) where state = 'pending' and family = 'executed';
