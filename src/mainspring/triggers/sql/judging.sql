-- name: versions_for
-- The enabled versions that judge anything from `low` on; of a tenant whose rules are in memory, as they stood when its
-- rules_seq was `known`, those alone that began or ended since. One row without a version says that there is none.
-- Asked after the events were read, and in one statement: a rule's event at or below any of them has its version here.
-- `offset 0` keeps the sub-select whole, so that it is not even begun for a tenant whose rules have not changed.
select a.tenant_id, h.rules_seq, f.rule_id, f.name, f.version, f.enabled, f.terms, f.action, f.options, f.from_seq, f.until_seq
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as a (tenant_id, low, known)
join mainspring.log_heads h on h.tenant_id = a.tenant_id
left join lateral (
    select v.rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
    from mainspring.rule_versions v
    join mainspring.rules r on r.tenant_id = v.tenant_id and r.id = v.rule_id
    where v.tenant_id = a.tenant_id and v.enabled and (v.until_seq is null or v.until_seq >= a.low)
      and h.rules_seq is distinct from a.known
      and (a.known is null or v.from_seq > a.known or v.until_seq > a.known)
    offset 0
) f on true;

-- name: versions_at
-- For explain: each rule with the version that judges the event of this seq, enabled or not; of a younger rule, its first.
-- Rules that were gone by then are left out. $3: only this rule.
select r.id as rule_id, r.name, v.version, v.enabled, v.terms, v.action, v.options, v.from_seq, v.until_seq
from mainspring.rules r
join mainspring.rule_versions v
    on v.tenant_id = r.tenant_id and v.rule_id = r.id
   and (v.from_seq < $2 and (v.until_seq is null or v.until_seq >= $2) or v.version = 1 and v.from_seq >= $2)
where r.tenant_id = $1 and ($3::uuid is null or r.id = $3)
order by r.id;
