-- Each check answers how many rows it looked at, how many violate, and the first twenty of those as sentences.

-- name: horizon
-- Behind this moment final effects may have been trimmed. And how far the log has been drained, read before anything else.
select statement_timestamp() - make_interval(secs => $2::double precision) as kept_since, h.head,
       coalesce((select min(c.position) from mainspring.cursors c where c.tenant_id = h.tenant_id), 0) as position
  from mainspring.log_heads h
 where h.tenant_id = $1;

-- name: events_between
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1 and e.seq > $2 and e.seq <= $3
 order by e.seq
 limit $4;

-- name: owed_of_events
-- What stands for these events, by kind and key.
select e.kind, e.key, e.event_seq from mainspring.effects e where e.tenant_id = $1 and e.event_seq = any($2::bigint[]);

-- name: owed_by_key
-- Of these names, those that an effect stands for, or a run that one made before it was trimmed.
select w.kind, w.key
  from unnest($2::text[], $3::text[]) as w (kind, key)
 where exists (select from mainspring.effects e where e.tenant_id = $1 and e.kind = w.kind and e.key = w.key)
    or exists (select from mainspring.runs r where r.tenant_id = $1 and r.effect_kind = w.kind and r.effect_key = w.key);

-- name: effects_trace
with bad as (
    select format('effect %s (%s %s) names event %s, which is not in the log', e.id, e.kind, e.key, e.event_seq) as what
      from mainspring.effects e
     where e.tenant_id = $1 and e.event_seq is not null
       and not exists (select from mainspring.events v where v.tenant_id = e.tenant_id and v.seq = e.event_seq)
    union all
    select format('effect %s (%s %s) names version %s of rule %s, which is not there', e.id, e.kind, e.key, e.rule_version, e.rule_id)
      from mainspring.effects e
     where e.tenant_id = $1 and e.rule_id is not null
       and not exists (select from mainspring.rule_versions v
                        where v.tenant_id = e.tenant_id and v.rule_id = e.rule_id and v.version = e.rule_version)
)
select (select count(*) from mainspring.effects where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: runs_trace
with bad as (
    select format('run %s names event %s, which is not in the log', r.id, r.event_seq) as what
      from mainspring.runs r
     where r.tenant_id = $1 and r.event_seq is not null
       and not exists (select from mainspring.events v where v.tenant_id = r.tenant_id and v.seq = r.event_seq)
    union all
    select format('run %s was never said to be queued: there is no run.queued event of it', r.id)
      from mainspring.runs r
     where r.tenant_id = $1
       and not exists (select from mainspring.events v
                        where v.tenant_id = r.tenant_id and v.subject = r.id::text and v.kind = 'run.queued')
)
select (select count(*) from mainspring.runs where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: names_are_unique
-- Asked of the rows, not of the index: this is what a broken index would hide.
with bad as (
    select format('%s effects are named %s %s', count(*), e.kind, e.key) as what
      from mainspring.effects e
     where e.tenant_id = $1
     group by e.kind, e.key
    having count(*) > 1
)
select (select count(*) from mainspring.effects where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: log_is_whole
with ends as (
    select h.head, c.name, c.position
      from mainspring.log_heads h
      join mainspring.cursors c on c.tenant_id = h.tenant_id
     where h.tenant_id = $1
), gaps as (
    select e.seq, lag(e.seq, 1, 0::bigint) over (order by e.seq) as before from mainspring.events e where e.tenant_id = $1
), skipped as materialized (
    -- a hole that an operator has looked at and led the drain past
    select (e.data ->> 'first')::bigint as first, (e.data ->> 'last')::bigint as last
      from mainspring.events e
     where e.tenant_id = $1 and e.kind = 'log.skipped'
), bad as (
    select format('the log has no event between %s and %s', before, seq) as what
      from gaps
     where seq <> before + 1
       and not exists (select from skipped s where s.first = before + 1 and s.last = seq - 1)
    union all
    select format('the cursor %s stands at %s, behind the head %s', name, position, head) from ends where position > head
    union all
    select format('the log ends at %s, and its head says %s', (select coalesce(max(seq), 0) from gaps), head)
      from ends
     where head < (select coalesce(max(seq), 0) from gaps)
)
select (select count(*) from gaps) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: effects_attempts
-- $2, $3: how many attempts each kind may have.
with bad as (
    select format('effect %s (%s %s) has spent %s attempts of %s and is %s', e.id, e.kind, e.key, e.attempts, m.most, e.state) as what
      from mainspring.effects e
      join unnest($2::text[], $3::integer[]) as m (kind, most) on m.kind = e.kind
     where e.tenant_id = $1
       and (e.attempts > m.most or (e.attempts >= m.most and e.state = 'pending'))
    union all
    select format('effect %s (%s %s) is dead for no reason of the five: %s', e.id, e.kind, e.key, coalesce(e.outcome, 'none'))
      from mainspring.effects e
     where e.tenant_id = $1 and e.state = 'dead'
       and coalesce(e.outcome, '') <> all (array['exhausted', 'failed', 'unknown', 'target_down', 'worker_crashed'])
    union all
    select format('effect %s (%s %s) is exhausted after %s attempts of %s', e.id, e.kind, e.key, e.attempts, m.most)
      from mainspring.effects e
      join unnest($2::text[], $3::integer[]) as m (kind, most) on m.kind = e.kind
     where e.tenant_id = $1 and e.state = 'dead' and e.outcome = 'exhausted' and e.attempts < m.most
)
select (select count(*) from mainspring.effects where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: runs_attempts
with bad as (
    select format('run %s has spent %s attempts of %s', r.id, r.attempts, $2::integer) as what
      from mainspring.runs r
     where r.tenant_id = $1 and r.attempts > $2
)
select (select count(*) from mainspring.runs where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: launches_have_runs
-- A launch that is done made exactly one run, and a run was made by a launch that is done, or was and has been trimmed since.
with made as (
    select r.effect_kind, r.effect_key, count(*) as n
      from mainspring.runs r
     where r.tenant_id = $1
     group by r.effect_kind, r.effect_key
), bad as (
    select format('launch %s (%s) is done, and has %s runs', e.id, e.key, coalesce(m.n, 0)) as what
      from mainspring.effects e
      left join made m on m.effect_kind = e.kind and m.effect_key = e.key
     where e.tenant_id = $1 and e.kind = 'launch' and e.state = 'done' and coalesce(m.n, 0) <> 1
    union all
    select format('launch %s (%s) is %s, and has a run', e.id, e.key, e.state)
      from mainspring.effects e
      join made m on m.effect_kind = e.kind and m.effect_key = e.key
     where e.tenant_id = $1 and e.kind = 'launch' and e.state <> 'done'
    union all
    select format('run %s was made by %s %s, which is not there and too young to have been trimmed', r.id, r.effect_kind, r.effect_key)
      from mainspring.runs r
     where r.tenant_id = $1 and r.created_at > statement_timestamp() - make_interval(secs => $2::double precision)
       and not exists (select from mainspring.effects e
                        where e.tenant_id = r.tenant_id and e.kind = r.effect_kind and e.key = r.effect_key)
)
select (select count(*) from mainspring.effects where tenant_id = $1 and kind = 'launch') + (select count(*) from made) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: labels_are_spent_once
-- A launch that takes a label off does so in its own transaction: one card.unlabeled of that cause and rule for its run.
with launched as (
    select r.id, r.card_id, r.event_seq, r.rule_id
      from mainspring.runs r
      join mainspring.rule_versions v on v.tenant_id = r.tenant_id and v.rule_id = r.rule_id and v.version = r.rule_version
     where r.tenant_id = $1 and r.card_id is not null and coalesce((v.options ->> 'consume_label')::boolean, false)
), spent as (
    select l.id, count(e.seq) as n
      from launched l
      left join mainspring.events e
        on e.tenant_id = $1 and e.subject = l.card_id::text and e.kind = 'card.unlabeled'
       and e.cause_seq = l.event_seq and l.rule_id = any(e.via) and e.data -> 'actor' ->> 'kind' = 'system'
     group by l.id
), bad as (
    select format('run %s was launched for a label that was taken off %s times', id, n) as what from spent where n <> 1
)
select (select count(*) from launched) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: cards_are_dispatched_once
with launched as (
    select c.id, count(r.id) as n
      from mainspring.cards c
      left join mainspring.runs r
        on r.tenant_id = c.tenant_id and r.effect_kind = 'launch' and r.effect_key = 'dispatch:' || c.id || ':' || c.dispatched_version
     where c.tenant_id = $1 and c.dispatched_version is not null
     group by c.id
), bad as (
    select format('card %s was dispatched, and %s runs were made for it', id, n) as what from launched where n <> 1
    union all
    select format('card %s was dispatched at version %s, and became eligible at %s', c.id, c.dispatched_version, c.eligible_version)
      from mainspring.cards c
     where c.tenant_id = $1 and c.dispatched_version > c.eligible_version
)
select (select count(*) from launched) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: rows_are_in_shape
with bad as (
    select format('effect %s is %s, and %s', e.id, e.state, case when e.lease_until is null then 'has no lease' else 'has a lease' end) as what
      from mainspring.effects e
     where e.tenant_id = $1 and (e.state = 'claimed') <> (e.lease_until is not null)
    union all
    select format('effect %s is claimed by nobody', e.id)
      from mainspring.effects e
     where e.tenant_id = $1 and e.state = 'claimed' and e.claim_id is null
    union all
    select format('effect %s is %s, and %s', e.id, e.state, case when e.settled_at is null then 'never ended' else 'has ended' end)
      from mainspring.effects e
     where e.tenant_id = $1 and (e.state in ('done', 'dropped', 'dead', 'discarded')) <> (e.settled_at is not null)
    union all
    select format('run %s is %s, and %s', r.id, r.state, case when r.lease_until is null then 'has no lease' else 'has a lease' end)
      from mainspring.runs r
     where r.tenant_id = $1 and (r.state in ('claimed', 'running')) <> (r.lease_until is not null)
    union all
    select format('rule %s has two versions that judge the same events: %s and %s', a.rule_id, a.version, b.version)
      from mainspring.rule_versions a
      join mainspring.rule_versions b on b.tenant_id = a.tenant_id and b.rule_id = a.rule_id and b.version > a.version
     where a.tenant_id = $1 and (a.until_seq is null or a.until_seq > b.from_seq)
    union all
    select format('version %s of rule %s judges from no seq', v.version, v.rule_id)
      from mainspring.rule_versions v
     where v.tenant_id = $1 and v.from_seq is null
)
select (select count(*) from mainspring.effects where tenant_id = $1) + (select count(*) from mainspring.runs where tenant_id = $1)
       + (select count(*) from mainspring.rule_versions where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: due_is_never_late
-- Claims look first where due_tenants says: an entry later than its rows would hide them.
with real as (
    select e.tenant_id, e.family, min(e.not_before) as next_due, count(*) as n
      from mainspring.effects e
     where e.tenant_id = $1 and e.state = 'pending' and e.not_before < 'infinity'
     group by e.tenant_id, e.family
), bad as (
    select format('%s pending effects are due from %s, and due_tenants says %s', r.n, r.next_due, coalesce(d.next_due::text, 'nothing')) as what
      from real r
      left join mainspring.due_tenants d on d.tenant_id = r.tenant_id and d.family = r.family
     where d.next_due is null or d.next_due > r.next_due
)
select (select coalesce(sum(n), 0)::bigint from real) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;
