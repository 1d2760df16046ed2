-- name: share_rule
-- Launches of one rule run side by side; who edits, disables or deletes it waits for those under way, and they for him.
select r.enabled, r.deleted_at is not null as deleted, r.paused_because, r.waived_seq, r.given_up_seq
from mainspring.rules r
where r.tenant_id = $1 and r.id = $2
for share;

-- name: hold_rule
-- One launch of this rule at a time: what it counts is what the one before has noted.
select r.enabled, r.deleted_at is not null as deleted, r.paused_because, r.waived_seq, r.given_up_seq
from mainspring.rules r
where r.tenant_id = $1 and r.id = $2
for no key update;

-- name: version
select v.rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
from mainspring.rule_versions v
join mainspring.rules r on r.tenant_id = v.tenant_id and r.id = v.rule_id
where v.tenant_id = $1 and v.rule_id = $2 and v.version = $3;

-- name: undispatched
-- Cards that became eligible, by an event that has been drained and may launch, and for which no launch was ever owed.
-- Only events younger than finished effects are kept: of an older one nobody can tell whether its launch was owed.
-- It walks the partial index of cards whose dispatch is behind, which is short; what it finds, a drain has missed.
-- Without the tenants where owing it has failed in this round ($5).
select c.tenant_id, c.id, c.agent_id, c.eligible_version, c.eligible_seq
from mainspring.cards c
join mainspring.cursors p on p.tenant_id = c.tenant_id and p.name = 'effects' and p.position >= c.eligible_seq
join mainspring.events e on e.tenant_id = c.tenant_id and e.seq = c.eligible_seq
where c.eligible_version is not null and c.deleted_at is null
  and (c.dispatched_version is null or c.dispatched_version < c.eligible_version)
  and c.agent_id is not null
  and e.depth < $1
  and e.trust = any($4::text[])
  and e.occurred_at > statement_timestamp() - make_interval(secs => $2)
  and c.tenant_id <> all($5::uuid[])
  and not exists (
      select from mainspring.effects f
      where f.tenant_id = c.tenant_id and f.kind = 'launch' and f.key = 'dispatch:' || c.id || ':' || c.eligible_version
  )
order by c.tenant_id, c.id
limit $3;
