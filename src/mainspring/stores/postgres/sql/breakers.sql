-- name: lock_breakers
-- One that does not stand yet is made, so that two who saw the first failure at once count two. In (tenant, target) order, as
-- everybody locks them; the claim alone takes a probe's out of turn, and skips one that is locked.
insert into mainspring.breakers as b (tenant_id, target)
select g.tenant_id, g.target
from unnest($1::uuid[], $2::text[]) as g (tenant_id, target)
order by g.tenant_id, g.target
on conflict (tenant_id, target) do update set changed_at = clock_timestamp()
returning b.tenant_id, b.target, b.failures, b.trips;

-- name: write_breakers
-- A clean one goes. Where it changed when a target is tried next, its tenant is due then: a claim had put that off until the
-- breaker as it was would have let anybody through.
with given as materialized (
    select * from unnest($1::uuid[], $2::text[], $3::integer[], $4::integer[], $5::double precision[], $6::text[])
        as g (tenant_id, target, failures, trips, open_seconds, error)
), closed as (
    delete from mainspring.breakers b
    using given g
    where b.tenant_id = g.tenant_id and b.target = g.target and g.failures = 0 and g.trips = 0
), written as (
    update mainspring.breakers b
    set failures = g.failures,
        trips = g.trips,
        open_until = case when g.trips = 0 then null
                          when g.open_seconds is null then b.open_until
                          else clock_timestamp() + g.open_seconds * interval '1 second' end,
        down_since = case when g.trips > 0 then coalesce(b.down_since, clock_timestamp()) end,
        error = coalesce(g.error, b.error),
        changed_at = clock_timestamp()
    from given g
    where b.tenant_id = g.tenant_id and b.target = g.target and (g.failures > 0 or g.trips > 0)
)
insert into mainspring.due_tenants as d (tenant_id, family, next_due, bumps)
select tenant_id, 'executed', clock_timestamp() + min(open_seconds) * interval '1 second', 1
from given
where open_seconds is not null
group by tenant_id order by tenant_id
on conflict (tenant_id, family) do update
    set next_due = least(d.next_due, excluded.next_due), bumps = d.bumps + 1;

-- name: breakers
select tenant_id, target, failures, trips, open_until, down_since, error
from mainspring.breakers
where tenant_id = $1
order by target;

-- name: forget_breakers
delete from mainspring.breakers
where changed_at < statement_timestamp() - $1::double precision * interval '1 second'
  and (open_until is null or open_until < statement_timestamp() - $1::double precision * interval '1 second');
