-- name: create_tenant
-- A tenant, its log and its cursor are born together: without a head an append finds no log, without a cursor no drain looks.
with born as (
    insert into mainspring.tenants (id, name) values ($1, $2) on conflict do nothing returning id
), head as (
    insert into mainspring.log_heads (tenant_id) select id from born
)
insert into mainspring.cursors (tenant_id, name) select id, 'effects' from born;

-- name: append
-- Head and events are one statement, so that seqs are taken in the order of commits and a rollback leaves no hole.
with head as (
    update mainspring.log_heads set head = head + cardinality($2::uuid[]) where tenant_id = $1 returning head
)
insert into mainspring.events
    (tenant_id, seq, id, kind, subject, actor_id, data, cause_seq, via, depth, trust, traceparent, occurred_at)
select $1, head.head - cardinality($2::uuid[]) + e.n, e.id, e.kind, e.subject, e.actor_id, e.data::jsonb, e.cause_seq,
       e.via::uuid[], e.depth, e.trust, e.traceparent, clock_timestamp()
from head,
     unnest($2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::bigint[], $8::text[], $9::integer[], $10::text[],
            $11::text[])
         with ordinality as e (id, kind, subject, actor_id, data, cause_seq, via, depth, trust, traceparent, n)
order by e.n
returning seq;

-- name: read
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
from mainspring.events e
where e.tenant_id = $1 and e.seq > $2
order by e.seq
limit $3;

-- name: events_at
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
from mainspring.events e
where e.tenant_id = $1 and e.seq = any($2::bigint[])
order by e.seq;

-- name: traceparents
-- Asked only where somebody traces.
select e.tenant_id, e.seq, e.traceparent
from unnest($1::uuid[], $2::bigint[]) as u (tenant_id, seq)
join mainspring.events e on e.tenant_id = u.tenant_id and e.seq = u.seq
where e.traceparent is not null;

-- name: head
select head from mainspring.log_heads where tenant_id = $1;

-- name: lock_lagging
-- Skipping what another drain holds: the two then drain different tenants. An engine older than the schema gets none,
-- since it might not know what a new kind of event owes.
select c.tenant_id, c.position, h.head
from mainspring.cursors c
join mainspring.log_heads h on h.tenant_id = c.tenant_id
where c.name = 'effects' and h.head > c.position
  and (select engine_version from mainspring.engine) <= $3
order by (c.tenant_id <= $1), c.tenant_id
limit $2
for update of c skip locked;

-- name: lock_called
-- The same of tenants that are known to have appended: looked up one by one, since a look at all tenants for the sake of one
-- commit costs by how many there are.
select c.tenant_id, c.position, h.head
from unnest($1::uuid[]) as u (tenant_id)
join mainspring.cursors c on c.tenant_id = u.tenant_id and c.name = 'effects'
join mainspring.log_heads h on h.tenant_id = c.tenant_id
where h.head > c.position
  and (select engine_version from mainspring.engine) <= $2
order by c.tenant_id
for update of c skip locked;

-- name: read_lagging
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
from unnest($1::uuid[], $2::bigint[]) with ordinality as u (tenant_id, position, n)
cross join lateral (
    select v.tenant_id, v.seq, v.id, v.kind, v.subject, v.actor_id, v.data, v.cause_seq, v.via, v.depth, v.trust,
           v.traceparent, v.occurred_at
    from mainspring.events v
    where v.tenant_id = u.tenant_id and v.seq > u.position
    order by v.seq
    limit $3
) e
order by u.n, e.seq
limit $4;

-- name: advance
-- The engine version is looked at again: whoever was frozen since the cursors were locked has read events that it might not know.
update mainspring.cursors c
set position = u.target
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as u (tenant_id, position, target)
where c.tenant_id = u.tenant_id and c.name = 'effects' and c.position = u.position
  and (select engine_version from mainspring.engine) <= $4;

-- name: position
select position from mainspring.cursors where tenant_id = $1 and name = 'effects';

-- name: required_engine_version
select engine_version from mainspring.engine;

-- name: skip_hole
-- A log is written in the order of its commits: whoever sees a later event sees all that ever stood before it. So a snapshot that is
-- older than the cursor, because a drain was waited for, finds no hole where none is.
with held as materialized (
    select c.position from mainspring.cursors c where c.tenant_id = $1 and c.name = 'effects' for update
), next as (
    select held.position,
           coalesce((select min(e.seq) from mainspring.events e where e.tenant_id = $1 and e.seq > held.position),
                    (select h.head + 1 from mainspring.log_heads h where h.tenant_id = $1)) as seq
    from held
)
update mainspring.cursors c
set position = next.seq - 1
from next
where c.tenant_id = $1 and c.name = 'effects' and c.position = next.position and next.seq > next.position + 1
returning next.position + 1 as first, next.seq - 1 as last;

-- name: due
-- The floor tick's one question: is there anything to do anywhere?
select exists (
           select from mainspring.log_heads h
           join mainspring.cursors c on c.tenant_id = h.tenant_id and c.name = 'effects'
           where h.head > c.position
       ) as lagging,
       exists (
           select from mainspring.due_tenants where family = 'executed' and next_due <= statement_timestamp()
       ) or exists (
           select from mainspring.effects
           where state = 'claimed' and lease_until < statement_timestamp() and kind = any($1::text[])
       ) as effects,
       exists (
           select from mainspring.effects e
           where e.state = 'pending' and e.family = 'executed' and e.crashes >= 2
             and e.not_before <= statement_timestamp() and e.kind = any($1::text[])
             and not exists (select from mainspring.breakers b
                             where b.tenant_id = e.tenant_id and b.target = e.target and b.open_until > statement_timestamp())
       ) or exists (
           select from mainspring.effects
           where state = 'claimed' and lease_until < statement_timestamp() and crashes >= 1 and kind = any($1::text[])
       ) as alone;
