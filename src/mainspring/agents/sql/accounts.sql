-- name: add_account
insert into mainspring.accounts (tenant_id, id, kind, handle, name)
values ($1, $2, $3, $4, $5)
on conflict (tenant_id, handle) do nothing;

-- name: account_by_handle
select id, kind, handle, name
  from mainspring.accounts
 where tenant_id = $1 and handle = $2;

-- name: authenticate
-- Across all tenants, by the digest alone: who holds this secret now? A run's token is valid only while the claim that it was
-- made for holds the run, which this very statement looks at.
select t.tenant_id, t.id, t.kind, t.role, t.extras, t.agents, t.run_id, t.claim_id, t.demo,
       a.id as account_id, a.kind as account_kind, a.handle,
       r.card_id, r.card_key, r.event_seq, r.via, r.depth, r.trust
  from mainspring.tokens t
  join mainspring.accounts a on a.tenant_id = t.tenant_id and a.id = t.account_id
  left join mainspring.runs r on r.tenant_id = t.tenant_id and r.id = t.run_id
 where t.sha256 = $1
   and t.revoked_at is null
   and (t.expires_at is null or t.expires_at > statement_timestamp())
   and (t.kind <> 'run' or (r.claim_id = t.claim_id and r.state in ('claimed', 'running')));

-- name: add_token
insert into mainspring.tokens
    (tenant_id, id, account_id, kind, role, extras, prefix, sha256, agents, run_id, claim_id, demo, expires_at)
values ($1, $2, $3, $4, $5, $6::text[], $7, $8, $9::uuid[], $10, $11, $12,
        clock_timestamp() + make_interval(secs => $13::double precision))
returning created_at, expires_at;

-- name: drop_run_tokens
-- Tokens of a run's earlier claims are dead by their predicate already; they need not be kept.
delete from mainspring.tokens
 where tenant_id = $1 and run_id = $2 and claim_id is distinct from $3::uuid;

-- name: drop_tokens_of_runs
delete from mainspring.tokens
 where tenant_id = $1 and run_id = any($2::uuid[]);

-- name: tokens
-- A run's tokens are made and dropped with its claims: they are nobody's to manage.
select t.id, t.account_id, a.handle as account, t.kind, t.role, t.extras, t.prefix, t.agents, t.demo,
       t.created_at, t.expires_at, t.revoked_at,
       coalesce(t.expires_at <= statement_timestamp(), false) as expired,
       array(select n.handle from mainspring.accounts n
              where n.tenant_id = t.tenant_id and n.id = any(t.agents) order by n.handle) as agent_handles
  from mainspring.tokens t
  join mainspring.accounts a on a.tenant_id = t.tenant_id and a.id = t.account_id
 where t.tenant_id = $1 and t.kind <> 'run'
   and ($2::uuid is null or t.id < $2)
   and ($3::uuid is null or t.id = $3)
 order by t.id desc
 limit $4;

-- name: revoke_token
-- Revoking twice keeps the first moment.
update mainspring.tokens
   set revoked_at = coalesce(revoked_at, clock_timestamp())
 where tenant_id = $1 and id = $2 and kind <> 'run';

-- name: demo_token_lives
select exists (
    select from mainspring.tokens t
     where t.demo and t.revoked_at is null and t.role = 'operator'
       and (t.expires_at is null or t.expires_at > statement_timestamp())
);

-- name: operator_lives
-- Whether somebody holds an operator's token that was not made for the demo.
select exists (
    select from mainspring.tokens t
     where t.tenant_id = $1 and t.kind = 'user' and t.role = 'operator' and not t.demo and t.revoked_at is null
       and (t.expires_at is null or t.expires_at > statement_timestamp())
);

-- name: lock_account
select id
  from mainspring.accounts
 where tenant_id = $1 and id = $2
   for no key update;
