-- name: server_now
select clock_timestamp() as now, current_setting('server_version_num')::integer as version, pg_is_in_recovery() as standby;

-- name: tables_without_walls
select c.relname
from pg_class c
where c.relnamespace = 'mainspring'::regnamespace and c.relkind in ('r', 'p')
  and not (c.relrowsecurity and c.relforcerowsecurity)
  and c.relname not in ('engine', 'schema_migrations')
order by c.relname;

-- name: log_state
-- How far one tenant's log goes, how far it is drained, how old what is not drained is, and whether what comes next is missing.
select h.head, c.position,
       coalesce(extract(epoch from statement_timestamp() - e.occurred_at), 0)::float8 as lag_seconds,
       c.position < h.head and e.seq is null as is_broken
from mainspring.log_heads h
join mainspring.cursors c on c.tenant_id = h.tenant_id and c.name = 'effects'
left join mainspring.events e on e.tenant_id = h.tenant_id and e.seq = c.position + 1 and c.position < h.head
where h.tenant_id = $1;

-- name: owed_state
-- Live rows by kind, through their partial indexes: how many, the oldest, and how long the longest overdue waits for a worker.
select kind, family = 'offered' as offered, count(*) as owed,
       extract(epoch from statement_timestamp() - min(created_at))::float8 as oldest_seconds,
       coalesce(extract(epoch from statement_timestamp() - min(not_before) filter (
           where state = 'pending' and not_before <= statement_timestamp())), 0)::float8 as overdue_seconds
from (
    -- what waits for a target that is down is not late: the target is told of by itself
    select e.kind, e.family, e.state, e.created_at, case when b.open_until is null then e.not_before end as not_before
    from mainspring.effects e
    left join mainspring.breakers b on b.tenant_id = e.tenant_id and b.target = e.target
    where e.tenant_id = $1 and e.state = 'pending'
    union all
    select kind, family, state, created_at, not_before from mainspring.effects where tenant_id = $1 and state = 'claimed'
) live
group by kind, family
order by kind;

-- name: unread_agents
-- Agents whose messages wait: they fetch these themselves, and no worker does. How many are due and since when the oldest waits, whether a
-- session reads, and the first that was refused and comes again later, behind which its topic waits.
select a.handle, g.paused, u.waiting, u.oldest_seconds, f.id as refused_id, f.attempts as refused, f.not_before as refused_until,
       exists (select from mainspring.sessions s
                where s.tenant_id = g.tenant_id and s.agent_id = g.id and s.lease_until is not null) as reads
from (select e.tenant_id, e.recipient_id, count(*) as waiting,
             extract(epoch from statement_timestamp() - min(e.created_at))::float8 as oldest_seconds
      from mainspring.effects e
      where e.tenant_id = $1 and e.state = 'pending' and e.family = 'offered' and e.not_before < 'infinity'
      group by e.tenant_id, e.recipient_id) u
join mainspring.agents g on g.tenant_id = u.tenant_id and g.id = u.recipient_id
join mainspring.accounts a on a.tenant_id = g.tenant_id and a.id = g.id
left join lateral (
    select e.id, e.attempts, e.not_before
    from mainspring.effects e
    where e.tenant_id = u.tenant_id and e.recipient_id = u.recipient_id and e.state = 'pending' and e.family = 'offered'
      and e.attempts > 0 and e.not_before > statement_timestamp() and e.not_before < 'infinity'
    order by e.event_seq, e.id
    limit 1) f on true
where u.oldest_seconds >= $2 or f.id is not null
order by u.oldest_seconds desc
limit 20;

-- name: dead_state
select (select count(*) from mainspring.effects where tenant_id = $1 and state = 'dead') as effects,
       (select count(*) from mainspring.runs where tenant_id = $1 and state in ('failed', 'lost')) as runs;

-- name: silent_runners
-- Runners that were heard of within a day, have not said that they go, and are silent for longer than a lease.
select r.name, extract(epoch from statement_timestamp() - r.last_seen_at)::float8 as silent_seconds,
       (select count(*) from mainspring.runs u
        where u.tenant_id = r.tenant_id and u.runner_id = r.id and u.state in ('claimed', 'running')) as held
from mainspring.runners r
where r.tenant_id = $1 and r.left_at is null and r.last_seen_at < statement_timestamp() - make_interval(secs => $2)
  and r.last_seen_at > statement_timestamp() - interval '1 day'
order by r.last_seen_at desc
limit 20;

-- name: unserved_agents
-- Agents with runs that could begin now, and are paused, or have nobody alive that may take them.
select a.handle, g.paused, u.runner_labels as labels, count(*) as queued,
       extract(epoch from statement_timestamp() - min(u.created_at))::float8 as oldest_seconds
from mainspring.runs u
join mainspring.agents g on g.tenant_id = u.tenant_id and g.id = u.agent_id
join mainspring.accounts a on a.tenant_id = u.tenant_id and a.id = u.agent_id
where u.tenant_id = $1 and u.state = 'queued' and u.not_before <= statement_timestamp()
  and (g.paused or not exists (
      select from mainspring.runners r
      where r.tenant_id = u.tenant_id and u.agent_id = any(r.agents) and not r.draining and u.runner_labels <@ r.labels
        and r.last_seen_at >= statement_timestamp() - make_interval(secs => $2)))
group by a.handle, g.paused, u.runner_labels
order by a.handle, u.runner_labels
limit 20;

-- name: paused_rules
select name, paused_because from mainspring.rules
where tenant_id = $1 and paused_at is not null and deleted_at is null
order by name
limit 20;

-- name: targets_down
select target, error, extract(epoch from statement_timestamp() - down_since)::float8 as down_seconds
from mainspring.breakers
where tenant_id = $1 and open_until is not null
order by down_since
limit 20;

-- name: long_transactions
-- Asked as the login itself, of which all the server's connections are: another's are not shown to it. A transaction that stays open
-- holds its tenant's log, or keeps dead rows.
select count(*) as open, coalesce(extract(epoch from statement_timestamp() - min(xact_start)), 0)::float8 as oldest_seconds
from pg_stat_activity
where usename = current_user and pid <> pg_backend_pid() and datname = current_database() and xact_start is not null;
