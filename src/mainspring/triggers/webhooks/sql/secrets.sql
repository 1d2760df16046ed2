-- name: keep_secret
-- A rule has one secret from when it first calls a webhook on; editing the rule leaves it.
insert into mainspring.webhook_secrets (tenant_id, rule_id, secret) values ($1, $2, $3)
on conflict (tenant_id, rule_id) do nothing
returning secret;

-- name: signing
-- What a message is signed with, and when: by the database's clock, so that every process signs by the same one.
select s.secret, clock_timestamp() as now from mainspring.webhook_secrets s where s.tenant_id = $1 and s.rule_id = $2;
