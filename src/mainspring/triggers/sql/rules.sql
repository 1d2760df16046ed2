-- name: insert_rule
insert into mainspring.rules (tenant_id, id, name, enabled, version) values ($1, $2, $3, $4, 1)
returning created_at;

-- name: insert_version
-- from_seq stays null until the stamp of its own event, at the end of the same transaction: nobody else ever sees it so.
insert into mainspring.rule_versions (tenant_id, rule_id, version, enabled, terms, action, options, actor_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)
returning created_at;

-- name: stamp_change
-- Called with the seq of the rule's event, while this transaction holds the log's head: the new version judges what comes
-- after that event, the old one what came up to it, and whoever keeps rules in memory sees that they changed.
-- A deleted rule has no new version; its last one ends here.
with opened as (
    update mainspring.rule_versions set from_seq = $4
    where tenant_id = $1 and rule_id = $2 and version = $3 and from_seq is null
), closed as (
    update mainspring.rule_versions set until_seq = $4
    where tenant_id = $1 and rule_id = $2 and version < $3 and until_seq is null
)
update mainspring.log_heads set rules_seq = greatest(rules_seq, $4) where tenant_id = $1;

-- name: lock_rule
-- For a change. What it says is read by a second statement: joined here, a lock that had to wait would find the new rule
-- beside the old version.
select r.id
from mainspring.rules r
where r.tenant_id = $1 and r.id = $2 and r.deleted_at is null
for no key update;

-- name: update_rule
update mainspring.rules
set name = $3, enabled = $4, version = version + 1
where tenant_id = $1 and id = $2;

-- name: delete_rule
-- The row stays: runs and effects name it, and explain shows what it was.
update mainspring.rules
set enabled = false, version = version + 1, deleted_at = clock_timestamp()
where tenant_id = $1 and id = $2;

-- name: rule
select r.id, r.name, r.enabled, r.paused_at, r.paused_because, r.version, r.created_at, v.terms, v.action, v.options, v.from_seq, v.created_at as changed_at,
       coalesce(a.handle, 'mainspring') as changed_by
from mainspring.rules r
join mainspring.rule_versions v on v.tenant_id = r.tenant_id and v.rule_id = r.id and v.version = r.version
left join mainspring.accounts a on a.tenant_id = v.tenant_id and a.id = v.actor_id
where r.tenant_id = $1 and r.id = $2 and r.deleted_at is null;

-- name: rule_id_by_name
select r.id from mainspring.rules r where r.tenant_id = $1 and r.folded = lower($2) and r.deleted_at is null;

-- name: rules
-- A page behind an id.
select r.id, r.name, r.enabled, r.paused_at, r.paused_because, r.version, r.created_at, v.terms, v.action, v.options, v.from_seq, v.created_at as changed_at,
       coalesce(a.handle, 'mainspring') as changed_by
from mainspring.rules r
join mainspring.rule_versions v on v.tenant_id = r.tenant_id and v.rule_id = r.id and v.version = r.version
left join mainspring.accounts a on a.tenant_id = v.tenant_id and a.id = v.actor_id
where r.tenant_id = $1 and r.id > $2 and r.deleted_at is null
order by r.id
limit $3;

-- name: boards_states
-- What a rule's boards and states are looked up in; read only, when a rule is written.
select b.key, array(select s ->> 'name' from jsonb_array_elements(b.states) as s) as states,
       array(select r.value from jsonb_each_text(b.reflect) as r) as reflected
from mainspring.boards b
where b.tenant_id = $1;

-- name: open_channels
select c.name from mainspring.channels c where c.tenant_id = $1 and c.name = any($2::text[]) and c.visibility = 'open';

-- name: accounts_kinds
select a.handle, a.kind from mainspring.accounts a where a.tenant_id = $1 and a.handle = any($2::text[]);
