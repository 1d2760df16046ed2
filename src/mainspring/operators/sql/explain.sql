-- name: card_by_key
-- Deleted cards too: what happened to them is still asked.
select c.id from mainspring.cards c
  join mainspring.boards b on b.tenant_id = c.tenant_id and b.id = c.board_id
 where c.tenant_id = $1 and b.key = $2 and c.number = $3;

-- name: noun_of_id
-- What an id is of. Ids are unique over all tables, so at most one line answers.
select 'card' as noun from mainspring.cards where tenant_id = $1 and id = $2
union all select 'run' from mainspring.runs where tenant_id = $1 and id = $2
union all select 'effect' from mainspring.effects where tenant_id = $1 and id = $2
union all select 'rule' from mainspring.rules where tenant_id = $1 and id = $2
union all select 'message' from mainspring.messages where tenant_id = $1 and id = $2;

-- name: rule_by_name
-- The living one of that name, else the last that had it.
select r.id from mainspring.rules r
 where r.tenant_id = $1 and r.folded = lower($2)
 order by r.deleted_at is not null, r.created_at desc
 limit 1;

-- name: log_ends
-- How far the log goes and how far it has been drained.
select h.head, c.position
  from mainspring.log_heads h
  join mainspring.cursors c on c.tenant_id = h.tenant_id and c.name = 'effects'
 where h.tenant_id = $1;

-- name: card_now
select c.id, b.key || '-' || c.number as key, c.title, c.state, c.version, a.handle as agent, c.deleted_at,
       c.eligible_version, c.dispatched_version
  from mainspring.cards c
  join mainspring.boards b on b.tenant_id = c.tenant_id and b.id = c.board_id
  left join mainspring.accounts a on a.tenant_id = c.tenant_id and a.id = c.agent_id
 where c.tenant_id = $1 and c.id = $2;

-- name: rule_now
select r.id, r.name, r.enabled, r.paused_because, r.version, r.created_at, r.deleted_at, v.terms, v.action, v.options, v.from_seq
  from mainspring.rules r
  join mainspring.rule_versions v on v.tenant_id = r.tenant_id and v.rule_id = r.id and v.version = r.version
 where r.tenant_id = $1 and r.id = $2;

-- name: rule_names
select r.id, r.name from mainspring.rules r where r.tenant_id = $1 and r.id = any($2::uuid[]);

-- name: events_of_subjects
-- The latest events about any of these things; shown oldest first by the caller.
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1 and e.subject = any($2::text[])
 order by e.seq desc
 limit $3;

-- name: events_by_seq
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1 and e.seq = any($2::bigint[])
 order by e.seq;

-- name: events_caused_by
-- What descends directly from these events.
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1 and e.seq > (select min(s) from unnest($2::bigint[]) s) and e.cause_seq = any($2::bigint[])
 order by e.seq
 limit $3;

-- name: effects_of_events
select e.id, e.kind, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload, e.state, e.attempts, e.crashes, e.deferrals,
       e.epoch, e.worker, e.lease_until, e.not_before, e.not_before = 'infinity' as held, e.cancel_requested, e.outcome, e.error,
       e.created_at, e.settled_at, e.not_before > statement_timestamp() as later,
       coalesce(e.lease_until < statement_timestamp(), false) as lease_over,
       b.open_until as down_until, b.open_until > statement_timestamp() as is_down, b.error as down_because
  from mainspring.effects e
  left join mainspring.breakers b on b.tenant_id = e.tenant_id and b.target = e.target and b.open_until is not null
 where e.tenant_id = $1 and e.event_seq = any($2::bigint[])
 order by e.id;

-- name: effects_by_id
select e.id, e.kind, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload, e.state, e.attempts, e.crashes, e.deferrals,
       e.epoch, e.worker, e.lease_until, e.not_before, e.not_before = 'infinity' as held, e.cancel_requested, e.outcome, e.error,
       e.created_at, e.settled_at, e.not_before > statement_timestamp() as later,
       coalesce(e.lease_until < statement_timestamp(), false) as lease_over,
       b.open_until as down_until, b.open_until > statement_timestamp() as is_down, b.error as down_because
  from mainspring.effects e
  left join mainspring.breakers b on b.tenant_id = e.tenant_id and b.target = e.target and b.open_until is not null
 where e.tenant_id = $1 and e.id = any($2::uuid[])
 order by e.id;

-- name: effects_of_rule
-- The latest effects of a rule, whatever version owed them.
select e.id, e.event_seq
  from mainspring.effects e
 where e.tenant_id = $1 and e.rule_id = $2
 order by e.id desc
 limit $3;

-- name: effect_attempts
select a.effect_id as of, a.n, a.epoch, a.worker, a.started_at, a.ended_at, a.outcome, a.error
  from mainspring.effect_attempts a
 where a.tenant_id = $1 and a.effect_id = any($2::uuid[])
 order by a.effect_id, a.started_at, a.n;

-- name: asks_of_runs
-- The latest questions of these runs.
select k.id from mainspring.asks k where k.tenant_id = $1 and k.run_id = any($2::uuid[]) order by k.id desc limit $3;

-- name: runs_of_card
select r.id from mainspring.runs r where r.tenant_id = $1 and r.card_id = $2 order by r.created_at desc, r.id desc limit $3;

-- name: runs_of_launches
-- The runs that these launches made.
select r.id
  from mainspring.runs r
  join unnest($2::text[], $3::text[]) as l (kind, key) on l.kind = r.effect_kind and l.key = r.effect_key
 where r.tenant_id = $1;

-- name: runs_by_id
-- With what it may be waiting for: its agent's pause and slots, and a runner that has been seen lately; or a person's answer.
select r.id, r.card_id, r.card_key, r.effect_kind, r.effect_key, r.event_seq, r.rule_id, r.rule_version, r.state, r.attempts,
       r.lease_until, r.not_before, r.not_before > statement_timestamp() as later, r.cancel_requested, r.outcome, r.error,
       r.created_at, r.started_at, r.ended_at, r.runner_labels, a.handle as agent, g.paused, g.slots,
       coalesce(r.lease_until < statement_timestamp(), false) as lease_over,
       (select count(*) from mainspring.runs o
         where o.tenant_id = r.tenant_id and o.agent_id = r.agent_id and o.state in ('claimed', 'running')) as held,
       w.name as runner,
       (select count(*) from mainspring.runners l
         where l.tenant_id = r.tenant_id and r.agent_id = any(l.agents) and not l.draining and r.runner_labels <@ l.labels
           and l.last_seen_at > statement_timestamp() - make_interval(secs => $3::double precision)) as runners_seen,
       (select min(k.asked_at) from mainspring.asks k
         where k.tenant_id = r.tenant_id and k.run_id = r.id and k.state = 'open'
           and (k.expires_at is null or k.expires_at > statement_timestamp())) as asking_since
  from mainspring.runs r
  join mainspring.agents g on g.tenant_id = r.tenant_id and g.id = r.agent_id
  join mainspring.accounts a on a.tenant_id = r.tenant_id and a.id = r.agent_id
  left join mainspring.runners w on w.tenant_id = r.tenant_id and w.id = r.runner_id
 where r.tenant_id = $1 and r.id = any($2::uuid[])
 order by r.created_at, r.id;

-- name: run_attempts
select a.run_id as of, a.n, a.runner, a.started_at, a.ended_at, a.outcome, a.error
  from mainspring.run_attempts a
 where a.tenant_id = $1 and a.run_id = any($2::uuid[])
 order by a.run_id, a.started_at, a.n;

-- name: events_of_rooms
-- The latest events that a rule could look at at all: how one rule judged them is the story of what it ignored.
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1
   and (e.kind like 'card.%' or e.kind like 'run.%' or e.kind like 'custom.%' or e.kind like 'effect.%'
        or e.kind = 'rule.changed')
 order by e.seq desc
 limit $2;
