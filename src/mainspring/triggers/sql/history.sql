-- name: versions_over
-- For explain: a page of the versions that judge any event from $2 to $3, enabled or not, behind ($4, $5).
select v.rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
from mainspring.rule_versions v
join mainspring.rules r on r.tenant_id = v.tenant_id and r.id = v.rule_id
where v.tenant_id = $1 and (v.rule_id, v.version) > ($4::uuid, $5::integer)
  and v.from_seq < $3 and (v.until_seq is null or v.until_seq >= $2)
order by v.rule_id, v.version
limit $6;

-- name: versions_of_rule_over
-- The same of one rule.
select v.rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
from mainspring.rule_versions v
join mainspring.rules r on r.tenant_id = v.tenant_id and r.id = v.rule_id
where v.tenant_id = $1 and v.rule_id = $4 and v.version > $5
  and v.from_seq < $3 and (v.until_seq is null or v.until_seq >= $2)
order by v.version
limit $6;

-- name: versions_behind
-- Of rules that were made or changed at or behind an event: their first versions and those that judge what is to come.
select v.rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
from mainspring.rule_versions v
join mainspring.rules r on r.tenant_id = v.tenant_id and r.id = v.rule_id
where v.tenant_id = $1 and v.from_seq >= $2 and (v.version = 1 or v.until_seq is null)
order by v.rule_id;

-- name: versions_of_rule_behind
-- The same of one rule.
select v.rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
from mainspring.rule_versions v
join mainspring.rules r on r.tenant_id = v.tenant_id and r.id = v.rule_id
where v.tenant_id = $1 and v.rule_id = $3 and v.from_seq >= $2 and (v.version = 1 or v.until_seq is null);
