-- name: lock_key
-- Held until the transaction ends, however it ends: whoever sends the same key meanwhile is told so, and nothing is left
-- behind by a crash. The kept answer is looked for in a statement of its own, whose snapshot is taken under the lock.
select pg_try_advisory_xact_lock(hashtextextended($1::uuid || ' ' || $2::uuid || ' ' || $3::text, 7700));

-- name: kept_answer
select request, status, headers, body, withheld
from mainspring.idempotency
where tenant_id = $1 and caller_id = $2 and key = $3 and expires_at > statement_timestamp();

-- name: keep_answer
-- Only an expired row of that key can stand in the way.
insert into mainspring.idempotency as i
    (tenant_id, caller_id, key, request, status, headers, body, withheld, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp() + make_interval(secs => $9::float8))
on conflict (tenant_id, caller_id, key) do update
set request = excluded.request, status = excluded.status, headers = excluded.headers, body = excluded.body,
    withheld = excluded.withheld, created_at = clock_timestamp(), expires_at = excluded.expires_at
where i.expires_at <= statement_timestamp();

-- name: trim_answers
delete from mainspring.idempotency
where (tenant_id, caller_id, key) in (
    select tenant_id, caller_id, key from mainspring.idempotency
    where expires_at <= statement_timestamp()
    order by expires_at
    limit $1
    for update skip locked
) and expires_at <= statement_timestamp();
