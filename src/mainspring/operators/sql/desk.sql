-- name: letters
-- One page of dead letters, the latest first: effects and runs in one order, so that neither hides behind the other.
select * from (
    select e.kind, e.id, e.state, e.outcome, e.error, e.settled_at as since, e.attempts, e.event_seq,
           coalesce(v.data -> 'card' ->> 'key', nullif(v.subject, ''), e.key) as subject, null::text as agent, false as paused
      from mainspring.effects e
      left join mainspring.events v on v.tenant_id = e.tenant_id and v.seq = e.event_seq
     where e.tenant_id = $1 and e.state = 'dead'
    union all
    select 'run', r.id, r.state, r.outcome, r.error, r.ended_at, r.attempts, r.event_seq,
           coalesce(r.card_key, a.handle), a.handle, g.paused
      from mainspring.runs r
      join mainspring.accounts a on a.tenant_id = r.tenant_id and a.id = r.agent_id
      join mainspring.agents g on g.tenant_id = r.tenant_id and g.id = r.agent_id
     where r.tenant_id = $1 and r.state in ('failed', 'lost')
) letters
where ($2::text is null or kind = $2)
  and ($3::timestamptz is null or (since, id) < ($3, $4::uuid))
order by since desc, id desc
limit $5;

-- name: letters_by_id
-- Effects and runs of these ids, dead or not: what was asked for and is not dead is said to be so.
select e.kind, e.id, e.state, e.outcome, e.error, coalesce(e.settled_at, e.created_at) as since, e.attempts, e.event_seq,
       coalesce(v.data -> 'card' ->> 'key', nullif(v.subject, ''), e.key) as subject, null::text as agent, false as paused
  from mainspring.effects e
  left join mainspring.events v on v.tenant_id = e.tenant_id and v.seq = e.event_seq
 where e.tenant_id = $1 and e.id = any($2::uuid[])
union all
select 'run', r.id, r.state, r.outcome, r.error, coalesce(r.ended_at, r.created_at), r.attempts, r.event_seq,
       coalesce(r.card_key, a.handle), a.handle, g.paused
  from mainspring.runs r
  join mainspring.accounts a on a.tenant_id = r.tenant_id and a.id = r.agent_id
  join mainspring.agents g on g.tenant_id = r.tenant_id and g.id = r.agent_id
 where r.tenant_id = $1 and r.id = any($2::uuid[]);

-- name: heaps
-- Letters that say the same, counted here; their texts are folded into causes by the caller.
select kind, outcome, error, count(*) as count, min(since) as oldest, max(since) as newest,
       (array_agg(id order by since, id))[1:5] as ids
  from (
    select e.kind, e.id, e.outcome, left(e.error, 500) as error, e.settled_at as since
      from mainspring.effects e where e.tenant_id = $1 and e.state = 'dead'
    union all
    select 'run', r.id, r.outcome, left(r.error, 500), r.ended_at
      from mainspring.runs r where r.tenant_id = $1 and r.state in ('failed', 'lost')
) letters
where ($2::text is null or kind = $2)
group by kind, outcome, error;

-- name: letters_of_kind
-- Ids and texts of all letters, oldest event first, for those that are described by their cause.
select kind, id, outcome, error
  from (
    select e.kind, e.id, e.outcome, left(e.error, 500) as error, e.event_seq
      from mainspring.effects e where e.tenant_id = $1 and e.state = 'dead'
    union all
    select 'run', r.id, r.outcome, left(r.error, 500), r.event_seq
      from mainspring.runs r where r.tenant_id = $1 and r.state in ('failed', 'lost')
) letters
where ($2::text is null or kind = $2)
order by event_seq nulls last, id;

-- name: effect_body
-- What one effect was to do, whole.
select e.key, e.payload, e.rule_id, e.rule_version, e.epoch, e.crashes, e.deferrals, e.target
  from mainspring.effects e
 where e.tenant_id = $1 and e.id = $2;

-- name: run_body
-- What one run was to do, whole.
select r.prompt, r.trigger, r.rule_id, r.rule_version, r.effect_kind, r.effect_key
  from mainspring.runs r
 where r.tenant_id = $1 and r.id = $2;
