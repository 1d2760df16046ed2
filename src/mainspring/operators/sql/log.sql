-- name: lock_effect
-- What is decided on it is decided on what it is, and not on what it was a moment before.
select e.state, e.cancel_requested
  from mainspring.effects e
 where e.tenant_id = $1 and e.id = $2
   for update;

-- name: list_events
-- By subject through its index; by kind along the log.
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1 and e.seq > $2
   and ($3::text is null or e.kind = $3)
   and ($4::text is null or split_part(e.kind, '.', 1) = $4)
   and ($5::text is null or e.subject = $5)
 order by e.seq
 limit $6;

-- name: last_events
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1
   and ($2::text is null or e.kind = $2)
   and ($3::text is null or split_part(e.kind, '.', 1) = $3)
   and ($4::text is null or e.subject = $4)
   and ($6::bigint is null or e.seq < $6)
 order by e.seq desc
 limit $5;
