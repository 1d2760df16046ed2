-- name: agents_of_token
-- The agents that a runner's token names, if it is still valid: asked at each look for work, not only when the poll began.
select n.id, n.handle, a.slots
  from mainspring.tokens t
  join mainspring.accounts n on n.tenant_id = t.tenant_id and n.id = any(t.agents)
  join mainspring.agents a on a.tenant_id = n.tenant_id and a.id = n.id
 where t.tenant_id = $1 and t.id = $2 and t.kind = 'runner'
   and t.revoked_at is null
   and (t.expires_at is null or t.expires_at > statement_timestamp())
 order by n.id;

-- name: meet_runner
-- A runner by its name. A new incarnation begins undrained; how many slots it has grows as it shows them, unless it says.
insert into mainspring.runners as w (tenant_id, id, name, incarnation, agents, slots, labels)
values ($1, $2, $3, $4, $5::uuid[], $6, $8::text[])
on conflict (tenant_id, name) do update
   set incarnation  = excluded.incarnation,
       agents       = case when w.incarnation = excluded.incarnation
                           then array(select distinct one from unnest(w.agents || excluded.agents) as one order by one)
                           else excluded.agents end,
       slots        = case when $7 or w.incarnation <> excluded.incarnation then excluded.slots
                           else greatest(w.slots, excluded.slots) end,
       labels       = excluded.labels,
       draining     = w.draining and w.incarnation = excluded.incarnation,
       left_at      = case when w.incarnation = excluded.incarnation then w.left_at end,
       last_seen_at = clock_timestamp()
returning w.id, w.draining;

-- name: leave_runner
-- This incarnation goes, and nothing is served by it any more. One that has taken its name meanwhile is another.
update mainspring.runners
   set draining = true, left_at = clock_timestamp()
 where tenant_id = $1 and name = $2 and incarnation = $3;

-- name: held_run
-- The run that one of these slots holds already: the answer that gave it was lost, so it is given again.
update mainspring.runs r
   set lease_until = clock_timestamp() + make_interval(secs => $6::double precision)
 where r.tenant_id = $1
   and r.id = (select h.id
                 from mainspring.runs h
                where h.tenant_id = $1 and h.runner_id = $2 and h.incarnation = $3 and h.slot = any($4::integer[])
                  and h.agent_id = any($5::uuid[]) and h.state in ('claimed', 'running')
                order by h.id
                limit 1
                  for no key update)
   and r.state in ('claimed', 'running')
returning r.id;

-- name: lock_due_agents
-- Agents with something that a runner of these labels may claim: the least of an index's order, however many wait behind it. Locked, so that what they hold can be counted by the next statement and stays true.
select a.id, a.slots
  from mainspring.agents a
 where a.tenant_id = $1 and a.id = any($2::uuid[]) and not a.paused
   and exists (select from mainspring.lanes(a.tenant_id, a.id, $3::text[]) as open (lane)
                where (select r.not_before
                         from mainspring.runs r
                        where r.tenant_id = a.tenant_id and r.agent_id = a.id and r.state = 'queued' and r.lane = open.lane
                        order by r.not_before
                        limit 1) <= statement_timestamp())
 order by a.id
   for no key update of a;

-- name: claim_run
-- The run that has waited longest for a runner of these labels, of the agents that have a slot free, into the runner's first slot that holds none.
-- A run that somebody has locked is busy: skip it. (What is asked once more of the one that was picked is asked as a case: else it
-- could be had from an index of queued runs, and without statistics the planner would read all of them for one.)
with place as (
    select min(free.slot) as slot
      from unnest($7::integer[]) as free(slot)
     where not exists (select from mainspring.runs h
                        where h.tenant_id = $1 and h.runner_id = $5 and h.incarnation = $6 and h.slot = free.slot
                          and h.state in ('claimed', 'running'))
), room as (
    select a.id
      from unnest($2::uuid[], $3::integer[]) as a(id, slots)
     where (select count(*)
              from mainspring.runs h
             where h.tenant_id = $1 and h.agent_id = a.id and h.state in ('claimed', 'running')) < a.slots
), next as (
    select first.id
      from room
     cross join lateral mainspring.lanes($1, room.id, $9::text[]) as open (lane)
     cross join lateral (
        select q.id, q.not_before
          from mainspring.runs q
         where q.tenant_id = $1 and q.agent_id = room.id and q.state = 'queued' and q.lane = open.lane
           and q.not_before <= statement_timestamp()
         order by q.not_before, q.id
         limit 1
           for no key update skip locked) as first
     order by first.not_before, first.id
     limit 1
)
update mainspring.runs r
   set state            = 'claimed',
       claim_id         = $4,
       runner_id        = $5,
       incarnation      = $6,
       slot             = place.slot,
       lease_until      = clock_timestamp() + make_interval(secs => $8::double precision),
       claim_lines      = 0,
       queued_until     = null,
       cancel_requested = false
  from next
 cross join place
 where r.tenant_id = $1 and r.id = next.id and place.slot is not null
   and case when r.state = 'queued' then r.not_before <= statement_timestamp() else false end
returning r.id;

-- name: renew_run
-- The heartbeat of a run that has begun. No row: the claim is lost, or this is its first heartbeat.
with beat as (
    update mainspring.runs r
       set lease_until = clock_timestamp() + make_interval(secs => $5::double precision)
     where r.tenant_id = $1 and r.id = $2 and r.claim_id = $3 and r.agent_id = any($4::uuid[]) and r.state = 'running'
    returning r.tenant_id, r.runner_id, r.incarnation, r.attempts, r.cancel_requested
)
select beat.runner_id, beat.attempts, beat.cancel_requested,
       coalesce(w.draining and w.incarnation = beat.incarnation, false) as draining
  from beat
  left join mainspring.runners w on w.tenant_id = beat.tenant_id and w.id = beat.runner_id;

-- name: start_run
-- The first heartbeat: now an attempt counts.
update mainspring.runs
   set state = 'running', attempts = attempts + 1, unbegun = 0,
       started_at  = coalesce(started_at, clock_timestamp()),
       lease_until = clock_timestamp() + make_interval(secs => $4::double precision)
 where tenant_id = $1 and id = $2 and claim_id = $3 and state = 'claimed';

-- name: lock_runner_of_run
-- The runner that a run was given to last. Its claims take this lock too: what its slots hold stays as it is.
select r.agent_id
  from mainspring.runs r
  join mainspring.runners w on w.tenant_id = r.tenant_id and w.id = r.runner_id
 where r.tenant_id = $1 and r.id = $2
   for no key update of w;

-- name: resume_run
-- A heartbeat that comes after the run was taken back: its runner lives after all. Refused when the slot holds another run by
-- now, or the agent has no slot to spare. The caller holds the runner, the agent and the run.
update mainspring.runs r
   set state = 'running', attempts = $4, unbegun = 0, outcome = null, error = null, ended_at = null,
       started_at  = coalesce(r.started_at, clock_timestamp()),
       lease_until = clock_timestamp() + make_interval(secs => $5::double precision)
 where r.tenant_id = $1 and r.id = $2 and r.claim_id = $3 and r.state in ('queued', 'lost')
   and not exists (select from mainspring.runs h
                    where h.tenant_id = r.tenant_id and h.runner_id = r.runner_id and h.incarnation = r.incarnation
                      and h.slot = r.slot and h.state in ('claimed', 'running'))
   and (select count(*) from mainspring.runs h
         where h.tenant_id = r.tenant_id and h.agent_id = r.agent_id and h.state in ('claimed', 'running'))
     < (select a.slots from mainspring.agents a where a.tenant_id = r.tenant_id and a.id = r.agent_id);

-- name: open_attempt
insert into mainspring.run_attempts (tenant_id, run_id, claim_id, n, runner, started_at)
select $1, $2, $3, 1 + coalesce(max(a.n), 0), $4, clock_timestamp()
  from mainspring.run_attempts a
 where a.tenant_id = $1 and a.run_id = $2;

-- name: close_attempt
update mainspring.run_attempts
   set ended_at = clock_timestamp(), outcome = $4, error = $5
 where tenant_id = $1 and run_id = $2 and claim_id = $3;

-- name: reopen_attempt
update mainspring.run_attempts
   set ended_at = null, outcome = null, error = null
 where tenant_id = $1 and run_id = $2 and claim_id = $3;

-- name: attempt_of_claim
select outcome
  from mainspring.run_attempts
 where tenant_id = $1 and run_id = $2 and claim_id = $3;

-- name: returns_in_a_row
-- How often the run was handed back since an attempt of it ended in any other way; the claim that speaks now does not count.
select count(*)
  from mainspring.run_attempts a
 where a.tenant_id = $1 and a.run_id = $2 and a.claim_id <> $3 and a.outcome = 'handed back'
   and not exists (select from mainspring.run_attempts later
                    where later.tenant_id = a.tenant_id and later.run_id = a.run_id and later.claim_id <> $3
                      and later.n > a.n and later.outcome is distinct from 'handed back');

-- name: append_log
-- A batch of lines in one statement: lines that this claim has sent before are passed over (given where the batch begins, $5),
-- and beyond the limit ($7 bytes) one mark says that the rest is missing.
with run as (
    select r.tenant_id, r.id, r.log_lines, r.log_bytes, r.log_truncated, r.claim_lines
      from mainspring.runs r
     where r.tenant_id = $1 and r.id = $2 and r.claim_id = $3 and r.agent_id = any($6::uuid[])
       for no key update
), given as (
    select line.text, line.i, sum(octet_length(line.text) + 1) over (order by line.i) as upto
      from run
     cross join unnest($4::text[]) with ordinality as line(text, i)
     where $5::bigint is null or $5 + line.i > run.claim_lines
), kept as (
    select given.text, given.i, given.upto
      from given
     cross join run
     where not run.log_truncated and run.log_bytes + given.upto <= $7
), sums as (
    select (select count(*) from kept) as lines,
           (select coalesce(max(kept.upto), 0) from kept) as bytes,
           (select count(*) from given) > (select count(*) from kept) as over
), written as (
    insert into mainspring.run_log (tenant_id, run_id, n, text)
    select run.tenant_id, run.id, run.log_lines + row_number() over (order by kept.i), kept.text
      from kept
     cross join run
), marked as (
    insert into mainspring.run_log (tenant_id, run_id, n, text)
    select run.tenant_id, run.id, run.log_lines + sums.lines + 1, $8
      from run
     cross join sums
     where sums.over and not run.log_truncated
)
update mainspring.runs r
   set log_lines     = run.log_lines + sums.lines + (sums.over and not run.log_truncated)::integer,
       log_bytes     = run.log_bytes + sums.bytes,
       log_truncated = run.log_truncated or sums.over,
       claim_lines   = greatest(run.claim_lines, coalesce($5::bigint, run.claim_lines) + cardinality($4::text[]))
  from run
 cross join sums
 where r.tenant_id = run.tenant_id and r.id = run.id
returning r.claim_lines as next, r.log_truncated as truncated;

-- name: claimable
-- One question for all the polls that wait in this process. For each [tenant, agent, labels] of theirs, by its place: how much work
-- of the agent could a runner of these labels claim now?
-- (Without the order it would read finished runs, too, while it looks for a hundred that are queued.)
select w.place, least(due.n, a.slots - held.n) as n
  from (select one.place, (one.asked ->> 0)::uuid as tenant_id, (one.asked ->> 1)::uuid as agent_id,
               array(select jsonb_array_elements_text(one.asked -> 2)) as labels
          from jsonb_array_elements($1::jsonb) with ordinality as one(asked, place)) as w
  join mainspring.agents a on a.tenant_id = w.tenant_id and a.id = w.agent_id and not a.paused
 cross join lateral (
    select count(*) as n
      from mainspring.lanes(w.tenant_id, w.agent_id, w.labels) as open (lane)
     cross join lateral (
        select from mainspring.runs q
         where q.tenant_id = w.tenant_id and q.agent_id = w.agent_id and q.state = 'queued' and q.lane = open.lane
           and q.not_before <= statement_timestamp()
         order by q.not_before, q.id
         limit 100) as first) as due
 cross join lateral (
    select count(*) as n
      from mainspring.runs h
     where h.tenant_id = w.tenant_id and h.agent_id = w.agent_id and h.state in ('claimed', 'running')) as held
 where due.n > 0 and held.n < a.slots;

-- name: seen_runners
-- Runners heard of since the last tick, if the row does not say so yet. One that somebody has locked is being touched by him.
-- Answers which of them shall drain: they may be waiting in a poll.
with heard as (
    select s.tenant_id, s.id from unnest($1::uuid[], $2::uuid[]) as s(tenant_id, id)
), stale as (
    select r.tenant_id, r.id
      from mainspring.runners r
      join heard on heard.tenant_id = r.tenant_id and heard.id = r.id
     where r.last_seen_at < statement_timestamp() - make_interval(secs => $3::double precision)
     order by r.tenant_id, r.id
       for no key update of r skip locked
), touched as (
    update mainspring.runners w
       set last_seen_at = clock_timestamp()
      from stale
     where w.tenant_id = stale.tenant_id and w.id = stale.id
)
select r.tenant_id, r.id
  from mainspring.runners r
  join heard on heard.tenant_id = r.tenant_id and heard.id = r.id
 where r.draining;

-- name: database_time
-- The clock that leases are measured by.
select extract(epoch from clock_timestamp())::double precision;

-- name: overdue_tenants
-- Runs that no runner has taken in their time. A paused agent's runs wait: they are not overdue. $2: tenants looked at already.
select distinct r.tenant_id
  from mainspring.runs r
  join mainspring.agents a on a.tenant_id = r.tenant_id and a.id = r.agent_id and not a.paused
 where r.state = 'queued' and r.queued_until < statement_timestamp() and r.tenant_id <> all ($2::uuid[])
 limit $1;

-- name: lock_overdue
select r.id
  from mainspring.runs r
  join mainspring.agents a on a.tenant_id = r.tenant_id and a.id = r.agent_id and not a.paused
 where r.tenant_id = $1 and r.state = 'queued' and r.queued_until < statement_timestamp()
 order by r.id
 limit $2
   for no key update of r skip locked;

-- name: count_unbegun
-- A claim that ended in silence before its first heartbeat. It spends no attempt, but it is counted.
update mainspring.runs
   set unbegun = unbegun + 1
 where tenant_id = $1 and id = $2 and state = 'claimed';

-- name: silent_tenants
-- $2: tenants looked at already.
select distinct tenant_id
  from mainspring.runs
 where state in ('claimed', 'running') and lease_until < statement_timestamp() and tenant_id <> all ($2::uuid[])
 limit $1;

-- name: lock_silent
-- The predicate is looked at again on the locked row: a run that has just been renewed is none of ours.
select id
  from mainspring.runs
 where tenant_id = $1 and state in ('claimed', 'running') and lease_until < statement_timestamp()
 order by id
 limit $2
   for no key update skip locked;
