-- name: queue_run
insert into mainspring.runs
    (tenant_id, id, agent_id, card_id, card_key, effect_kind, effect_key, event_seq, rule_id, rule_version,
     card_state_version, state, prompt, trigger, via, depth, trust, exclusive, runner_labels,
     queued_timeout_seconds, queued_until)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'queued', $12, $13, $14::uuid[], $15, $16, $17, $18::text[],
        $19::double precision, clock_timestamp() + make_interval(secs => $19::double precision));

-- name: lock_runs
-- The rows of one table are locked by id; what they hold is read by the next statement, behind the lock.
select id
  from mainspring.runs
 where tenant_id = $1 and id = any($2::uuid[])
 order by id
   for no key update;

-- name: runs
select r.id, r.agent_id, n.handle as agent_handle, r.card_id, r.card_key, r.effect_kind, r.effect_key, r.event_seq,
       r.rule_id, r.rule_version, r.card_state_version, r.state, r.attempts, r.unbegun, r.claim_id, w.name as runner, r.slot,
       r.lease_until, r.not_before, r.cancel_requested, r.prompt, r.trigger, r.via, r.depth, r.trust, r.runner_labels,
       r.outcome, r.error, r.log_bytes, r.created_at, r.started_at, r.ended_at
  from mainspring.runs r
  join mainspring.accounts n on n.tenant_id = r.tenant_id and n.id = r.agent_id
  left join mainspring.runners w on w.tenant_id = r.tenant_id and w.id = r.runner_id
 where r.tenant_id = $1 and r.id = any($2::uuid[])
 order by r.id;

-- name: list_runs
-- The newest first, along the primary key.
select r.id
  from mainspring.runs r
 where r.tenant_id = $1 and r.id < $2
   and ($4::uuid is null or r.agent_id = $4)
   and ($5::text[] is null or r.state = any($5))
 order by r.id desc
 limit $3;

-- name: list_runs_of_card
-- What an index of its own can drive has a statement of its own: `$n is null or ...` keeps a cached plan from using any.
select r.id
  from mainspring.runs r
 where r.tenant_id = $1 and r.id < $2 and r.card_id = $6
   and ($4::uuid is null or r.agent_id = $4)
   and ($5::text[] is null or r.state = any($5))
 order by r.id desc
 limit $3;

-- name: list_runs_of_key
select r.id
  from mainspring.runs r
 where r.tenant_id = $1 and r.id < $2 and r.card_key = $6
   and ($4::uuid is null or r.agent_id = $4)
   and ($5::text[] is null or r.state = any($5))
 order by r.id desc
 limit $3;

-- name: list_runs_of_agent
select r.id
  from mainspring.runs r
 where r.tenant_id = $1 and r.id < $2 and r.agent_id = $4
   and ($5::text[] is null or r.state = any($5))
 order by r.id desc
 limit $3;

-- name: list_live_runs
-- The states are constants, so that the index of such runs alone serves; $5 chooses among them. Materialized, since the order
-- and the limit would lead the planner along the primary key, past all that is over.
with those as materialized (
    select r.id
      from mainspring.runs r
     where r.tenant_id = $1 and r.id < $2 and r.state in ('queued', 'claimed', 'running', 'needs_input')
       and ($4::uuid is null or r.agent_id = $4)
       and r.state = any($5::text[])
)
select id from those order by id desc limit $3;

-- name: list_dead_runs
with those as materialized (
    select r.id
      from mainspring.runs r
     where r.tenant_id = $1 and r.id < $2 and r.state in ('failed', 'lost')
       and ($4::uuid is null or r.agent_id = $4)
       and r.state = any($5::text[])
)
select id from those order by id desc limit $3;

-- name: waiting_of_run
-- What a queued run waits for, as one row of facts.
select a.paused, a.slots, r.runner_labels as labels,
       r.not_before > statement_timestamp() as early,
       (select count(*) from mainspring.runs h
         where h.tenant_id = a.tenant_id and h.agent_id = a.id and h.state in ('claimed', 'running')) as held,
       exists (select from mainspring.runners w
                where w.tenant_id = a.tenant_id and a.id = any(w.agents) and not w.draining and r.runner_labels <@ w.labels
                  and w.last_seen_at > statement_timestamp() - make_interval(secs => $3::double precision)) as served
  from mainspring.runs r
  join mainspring.agents a on a.tenant_id = r.tenant_id and a.id = r.agent_id
 where r.tenant_id = $1 and r.id = $2;

-- name: live_run_of_card
select exists (
    select from mainspring.runs
     where tenant_id = $1 and card_id = $2 and agent_id = $3
       and state in ('queued', 'claimed', 'running', 'needs_input')
);

-- name: run_now
-- The newest by the database's clock: runs of a card are queued under the card's lock, so their order is sure.
select r.id, r.state, r.card_id, r.card_state_version, n.handle as agent_handle, r.event_seq, r.via, r.depth, r.trust,
       not exists (select from mainspring.runs later
                    where later.tenant_id = r.tenant_id and later.card_id = r.card_id
                      and (later.created_at, later.id) > (r.created_at, r.id)) as newest_of_card
  from mainspring.runs r
  join mainspring.accounts n on n.tenant_id = r.tenant_id and n.id = r.agent_id
 where r.tenant_id = $1 and r.id = $2;

-- name: saw_card_state
update mainspring.runs
   set card_state_version = $3
 where tenant_id = $1 and id = $2;

-- name: conclude_run
-- The finishing write: only while the run is in the state, and under the claim, that the decision was made on.
-- One that is queued again waits for a runner as long as it did at first; one that has ended is nobody's exclusive run any
-- more, so that a replay is not refused for the run that has taken its place. Claims in silence are counted in a row: what a
-- runner says of a run that it had begun, or that was taken from it, ends the row; a run given back unbegun leaves it as it is.
update mainspring.runs
   set state       = $5,
       outcome     = $6,
       error       = $7,
       attempts    = coalesce($9::integer, attempts),
       unbegun     = case when $3 = 'claimed' then unbegun else 0 end,
       lease_until = null,
       not_before  = clock_timestamp() + make_interval(secs => $8::double precision),
       queued_until = case when $5 = 'queued'
                           then clock_timestamp() + make_interval(secs => $8::double precision + queued_timeout_seconds) end,
       exclusive   = exclusive and $5 in ('queued', 'claimed', 'running', 'needs_input'),
       ended_at    = case when $5 in ('done', 'blocked', 'failed', 'cancelled', 'lost', 'discarded')
                          then clock_timestamp() end
 where tenant_id = $1 and id = $2
   and state = $3 and claim_id is not distinct from $4::uuid;

-- name: request_cancel
update mainspring.runs
   set cancel_requested = true
 where tenant_id = $1 and id = $2 and state in ('claimed', 'running');

-- name: replay_runs
-- The same runs with fresh attempts. Their last claim stays readable, and valid for nothing that it has not begun.
update mainspring.runs
   set state = 'queued', attempts = 0, unbegun = 0, not_before = clock_timestamp(), ended_at = null, outcome = null,
       cancel_requested = false, queued_until = clock_timestamp() + make_interval(secs => queued_timeout_seconds)
 where tenant_id = $1 and id = any($2::uuid[]) and state in ('failed', 'lost');

-- name: discard_runs
update mainspring.runs
   set state = 'discarded', outcome = $3, ended_at = clock_timestamp()
 where tenant_id = $1 and id = any($2::uuid[]) and state in ('failed', 'lost');

-- name: attempts
select n, claim_id, runner, started_at, ended_at, outcome, error
  from mainspring.run_attempts
 where tenant_id = $1 and run_id = $2
 order by n;

-- name: read_log
select n, at, text
  from mainspring.run_log
 where tenant_id = $1 and run_id = $2 and n > $3
 order by n
 limit $4;

-- name: runs_by_state
-- All tenants, and only what the partial indexes hold: finished runs may number millions.
select state, count(*) as n
  from mainspring.runs
 where state in ('queued', 'claimed', 'running', 'needs_input')
 group by state
union all
select state, count(*) as n
  from mainspring.runs
 where state in ('failed', 'lost')
 group by state;
