-- name: add_agent
insert into mainspring.agents (tenant_id, id, slots, wake)
values ($1, $2, $3, $4);

-- name: agents
-- Every agent with what it has to do and who would do it: one page, in the order in which they were made.
select a.id, n.handle, n.name, a.slots, a.paused, a.wake, a.version, a.created_at,
       (select count(*) from mainspring.runs r
         where r.tenant_id = a.tenant_id and r.agent_id = a.id and r.state = 'queued') as queued,
       (select count(*) from mainspring.runs r
         where r.tenant_id = a.tenant_id and r.agent_id = a.id and r.state in ('claimed', 'running')) as held,
       exists (select from mainspring.runners w
                where w.tenant_id = a.tenant_id and a.id = any(w.agents) and not w.draining
                  and w.last_seen_at > statement_timestamp() - make_interval(secs => $2::double precision)) as served
  from mainspring.agents a
  join mainspring.accounts n on n.tenant_id = a.tenant_id and n.id = a.id
 where a.tenant_id = $1
   and ($3::uuid is null or a.id > $3)
   and ($4::uuid is null or a.id = $4)
 order by a.id
 limit $5;

-- name: agent_by_handle
select a.id, n.handle, n.name, a.slots, a.paused, a.wake, a.version, a.created_at
  from mainspring.accounts n
  join mainspring.agents a on a.tenant_id = n.tenant_id and a.id = n.id
 where n.tenant_id = $1 and n.handle = $2;

-- name: agent
select a.id, n.handle, n.name, a.slots, a.paused, a.wake, a.version, a.created_at
  from mainspring.agents a
  join mainspring.accounts n on n.tenant_id = a.tenant_id and n.id = a.id
 where a.tenant_id = $1 and a.id = $2;

-- name: lock_agent
select id
  from mainspring.agents
 where tenant_id = $1 and id = $2
   for no key update;

-- name: update_agent
update mainspring.agents
   set slots = $3, paused = $4, wake = $5, version = version + 1
 where tenant_id = $1 and id = $2;

-- name: restart_queued_timeouts
-- An agent is resumed: its runs wait for a runner from now on.
with waiting as materialized (
    select id from mainspring.runs
     where tenant_id = $1 and agent_id = $2 and state = 'queued' and queued_until is not null
     order by id
       for no key update
)
update mainspring.runs r
   set queued_until = clock_timestamp() + make_interval(secs => r.queued_timeout_seconds)
  from waiting
 where r.tenant_id = $1 and r.id = waiting.id and r.state = 'queued';

-- name: rename_account
update mainspring.accounts
   set name = $3
 where tenant_id = $1 and id = $2;

-- name: live_runs_of_agent
select id
  from mainspring.runs
 where tenant_id = $1 and agent_id = $2 and state in ('queued', 'claimed', 'running', 'needs_input')
 order by id
 limit $3;

-- name: runners
-- A runner is live while it was heard of within three renewals, which is one lease.
select w.id, w.name, w.incarnation, w.slots, w.labels, w.draining and w.left_at is null as draining, w.created_at, w.last_seen_at,
       w.left_at is null and w.last_seen_at > statement_timestamp() - make_interval(secs => $2::double precision) as live,
       array(select n.handle from mainspring.accounts n
              where n.tenant_id = w.tenant_id and n.id = any(w.agents) order by n.handle) as agents,
       array(select r.id from mainspring.runs r
              where r.tenant_id = w.tenant_id and r.runner_id = w.id and r.state in ('claimed', 'running')
              order by r.id) as runs
  from mainspring.runners w
 where w.tenant_id = $1
   and ($3::uuid is null or w.id > $3)
   and ($4::uuid is null or w.id = $4)
   and ($5::text is null or w.name = $5)
 order by w.id
 limit $6;

-- name: drain_runner
update mainspring.runners
   set draining = true
 where tenant_id = $1 and id = $2;

-- name: slots_by_use
-- All tenants: slots of live runners, and how many of them hold a run.
select coalesce(sum(w.slots), 0) as all_slots,
       coalesce(sum((select count(*) from mainspring.runs r
                      where r.tenant_id = w.tenant_id and r.runner_id = w.id
                        and r.state in ('claimed', 'running'))), 0) as busy
  from mainspring.runners w
 where w.left_at is null and w.last_seen_at > statement_timestamp() - make_interval(secs => $1::double precision);
