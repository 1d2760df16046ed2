-- name: tail_events
-- One question for all tails of this process, each behind its own position. Commit order is seq order: nothing can still appear
-- in front of what is read here.
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
from unnest($1::uuid[], $2::bigint[]) as u (tenant_id, position)
cross join lateral (
    select v.tenant_id, v.seq, v.id, v.kind, v.subject, v.actor_id, v.data, v.cause_seq, v.via, v.depth, v.trust,
           v.traceparent, v.occurred_at
    from mainspring.events v
    where v.tenant_id = u.tenant_id and v.seq > u.position
    order by v.seq
    limit $3
) e
order by e.tenant_id, e.seq;

-- name: roles_of_tokens
-- Which of these tokens are still good for anything, and what for. A run's end with its claim; no stream is a run's.
select t.id, t.role
from unnest($1::uuid[], $2::uuid[]) as u (tenant_id, id)
join mainspring.tokens t on t.tenant_id = u.tenant_id and t.id = u.id
where t.kind <> 'run' and t.revoked_at is null and (t.expires_at is null or t.expires_at > statement_timestamp());

-- name: log_bounds
select (select head from mainspring.log_heads where tenant_id = $1) as head,
       (select min(seq) from mainspring.events where tenant_id = $1) as oldest;
