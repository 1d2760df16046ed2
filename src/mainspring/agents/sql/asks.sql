-- name: asks
-- With what people want to know of the run. One whose time is over is over, whether its runner has been told or not.
select k.id, k.run_id, k.question, k.options, k.released, k.answer, n.handle as answered_by, k.answered_by as answered_by_id,
       k.reason, k.asked_at, k.expires_at, k.ended_at, r.state as run_state, r.card_key, a.handle as agent_handle,
       case when k.state = 'open' and k.expires_at <= statement_timestamp() then 'expired' else k.state end as state
  from mainspring.asks k
  join mainspring.runs r on r.tenant_id = k.tenant_id and r.id = k.run_id
  join mainspring.accounts a on a.tenant_id = r.tenant_id and a.id = r.agent_id
  left join mainspring.accounts n on n.tenant_id = k.tenant_id and n.id = k.answered_by
 where k.tenant_id = $1 and k.id = any($2::uuid[])
 order by k.id;

-- name: asks_of_run
select k.id
  from mainspring.asks k
 where k.tenant_id = $1 and k.run_id = $2
 order by k.id;

-- name: run_of_ask
select k.run_id
  from mainspring.asks k
 where k.tenant_id = $1 and k.id = $2 and k.run_id is not null;

-- name: list_open_asks
-- Those that wait for an answer, the one that waits longest first.
select k.id
  from mainspring.asks k
 where k.tenant_id = $1 and k.id > $2 and k.state = 'open' and k.run_id is not null
   and (k.expires_at is null or k.expires_at > statement_timestamp())
 order by k.id
 limit $3;

-- name: list_asks
select k.id
  from mainspring.asks k
 where k.tenant_id = $1 and k.id > $2 and k.run_id is not null
 order by k.id
 limit $3;

-- name: ask_of_request
-- What this asking has come to before, if it is sent again.
select k.id
  from mainspring.asks k
 where k.tenant_id = $1 and k.run_id = $2 and k.request_id = $3;

-- name: adopt_ask
-- The same question of an earlier claim: it still waits, or was answered behind this claim's back. It is this claim's now.
update mainspring.asks k
   set claim_id = $3, request_id = $4, released = k.state = 'open' and $7,
       expires_at = case when k.state = 'open' then clock_timestamp() + make_interval(secs => $8::double precision)
                         else k.expires_at end
 where k.tenant_id = $1
   and k.id = (select o.id
                 from mainspring.asks o
                where o.tenant_id = $1 and o.run_id = $2 and o.claim_id <> $3 and o.question = $5 and o.options = $6::text[]
                  and (o.state = 'answered'
                       or o.state = 'open' and (o.expires_at is null or o.expires_at > statement_timestamp()))
                order by o.id
                limit 1)
returning k.id;

-- name: open_ask
insert into mainspring.asks
    (tenant_id, id, run_id, claim_id, request_id, question, options, released, state, expires_at)
values ($1, $2, $3, $4, $5, $6, $7::text[], $8, 'open', clock_timestamp() + make_interval(secs => $9::double precision));

-- name: answer_ask
-- The first answer: the caller holds the run, and so nobody else answers, cancels or ends it now.
update mainspring.asks
   set state = 'answered', answer = $3, answered_by = $4, ended_at = clock_timestamp()
 where tenant_id = $1 and id = $2 and state = 'open'
   and (expires_at is null or expires_at > statement_timestamp());

-- name: expire_asks
-- Their runner asks, under the run's lock: from here on nobody answers them any more.
update mainspring.asks
   set state = 'expired', ended_at = clock_timestamp()
 where tenant_id = $1 and run_id = $2 and id = any($3::uuid[]) and state = 'open' and expires_at <= statement_timestamp();

-- name: ended_asks
select k.id, k.state, k.answer, k.reason
  from mainspring.asks k
 where k.tenant_id = $1 and k.run_id = $2 and k.id = any($3::uuid[]) and k.state <> 'open'
 order by k.id;

-- name: give_answers
-- All that was answered to a run so far, for a claim that knows nothing of it yet. The caller holds the run.
with given as (
    update mainspring.asks k
       set claim_id = $3
     where k.tenant_id = $1 and k.run_id = $2 and k.state = 'answered' and k.claim_id <> $3
)
select k.id, k.question, k.options, k.answer, n.handle as answered_by, k.ended_at
  from mainspring.asks k
  join mainspring.accounts n on n.tenant_id = k.tenant_id and n.id = k.answered_by
 where k.tenant_id = $1 and k.run_id = $2 and k.state = 'answered'
 order by k.id;

-- name: close_asks
-- Their runs are over: nobody waits for an answer any more.
update mainspring.asks
   set state    = case when expires_at <= statement_timestamp() then 'expired' else 'closed' end,
       reason   = case when expires_at <= statement_timestamp() then null else $3 end,
       ended_at = clock_timestamp()
 where tenant_id = $1 and run_id = any($2::uuid[]) and state = 'open';
