-- name: pause_rule
update mainspring.rules set paused_at = clock_timestamp(), paused_because = $3
where tenant_id = $1 and id = $2
returning paused_at;

-- name: unpause_rule
update mainspring.rules set paused_at = null, paused_because = null where tenant_id = $1 and id = $2;

-- name: stamp_resumed
-- Up to the seq of the rule's own event: whatever it owes for what happened before is told the same, met already or not.
update mainspring.rules
set waived_seq = case when $4::boolean then $3 else waived_seq end,
    given_up_seq = case when $4::boolean then given_up_seq else $3 end
where tenant_id = $1 and id = $2;

-- name: free_held
-- Whoever holds a row does so under the rule's lock, which the caller has: none is held behind this statement's back.
with held as materialized (
    select e.id
    from mainspring.effects e
    where e.tenant_id = $1 and e.rule_id = $2 and e.state = 'pending' and e.not_before = 'infinity'
    order by e.id
    for update
), freed as (
    update mainspring.effects e
    set not_before = clock_timestamp(), outcome = null, error = null
    from held
    where e.tenant_id = $1 and e.id = held.id
    returning e.tenant_id, e.family, e.not_before
), bumped as (
    insert into mainspring.due_tenants as d (tenant_id, family, next_due, bumps)
    select tenant_id, family, min(not_before), 1 from freed group by tenant_id, family order by tenant_id, family
    on conflict (tenant_id, family) do update
        set next_due = least(d.next_due, excluded.next_due), bumps = d.bumps + 1
)
select count(*) from freed;

-- name: give_up_held
with held as materialized (
    select e.id
    from mainspring.effects e
    where e.tenant_id = $1 and e.rule_id = $2 and e.state = 'pending' and e.not_before = 'infinity'
    order by e.id
    for update
), dropped as (
    update mainspring.effects e
    set state = 'dropped', outcome = 'dropped(' || $3::text || ')', error = null,
        settled_at = clock_timestamp()
    from held
    where e.tenant_id = $1 and e.id = held.id
    returning e.id
)
select count(*) from dropped;

-- name: count_held
select count(*)
from mainspring.effects e
where e.tenant_id = $1 and e.rule_id = $2 and e.state = 'pending' and e.not_before = 'infinity';

-- name: stray_held
-- Rows that are held though their rule is not paused. A launch holds its row under the rule's lock; what goes out into the world
-- is settled later, and a resume may have come between.
select distinct e.tenant_id, e.rule_id
from mainspring.effects e
left join mainspring.rules r on r.tenant_id = e.tenant_id and r.id = e.rule_id
where e.state = 'pending' and e.not_before = 'infinity' and e.rule_id is not null and r.paused_at is null
  and e.tenant_id <> all($2::uuid[])
order by e.tenant_id, e.rule_id
limit $1;
