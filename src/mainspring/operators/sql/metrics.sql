-- name: log_gauges
-- Over all tenants: how far the logs go, how far they are drained, and how old the first undrained event is.
select coalesce(sum(h.head), 0)::bigint as head, coalesce(sum(c.position), 0)::bigint as position,
       coalesce(extract(epoch from statement_timestamp() - min(e.occurred_at)), 0)::double precision as lag_seconds
  from mainspring.log_heads h
  join mainspring.cursors c on c.tenant_id = h.tenant_id and c.name = 'effects'
  left join mainspring.events e on e.tenant_id = c.tenant_id and e.seq = c.position + 1 and c.position < h.head;

-- name: effect_gauges
-- Live and dead rows alone: the partial indexes hold no others, so finished ones cost nothing here.
select kind, count(*) filter (where state <> 'dead') as owed, count(*) filter (where state = 'dead') as dead,
       coalesce(extract(epoch from statement_timestamp() - min(created_at) filter (where state <> 'dead')), 0)::double precision
           as oldest_seconds
  from (
    select kind, state, created_at from mainspring.effects where state = 'pending'
    union all
    select kind, state, created_at from mainspring.effects where state = 'claimed'
    union all
    select kind, state, created_at from mainspring.effects where state = 'dead'
) living
group by kind;

-- name: dead_runs
-- Over all tenants, as the desk shows them; by the partial index of dead runs.
select count(*) from mainspring.runs where state in ('failed', 'lost');

-- name: open_breakers
-- How many targets are taken to be down. Not which: whoever scrapes is asked for no token, and a host may be a tenant's own.
select count(*) from mainspring.breakers where open_until is not null;

-- name: live_sessions
-- By the partial index of those that have a lease.
select s.state, count(*) as n from mainspring.sessions s where s.lease_until is not null group by s.state;
