-- Each check answers how many rows it looked at, how many violate, and the first twenty of those as sentences. All of them, and the
-- audit's own statements, are asked in one snapshot.

-- name: horizon
-- The first statement: the snapshot's moment, which every other one is given; how far the log has been drained; and behind
-- which moment finished effects may have been trimmed.
select statement_timestamp() as moment,
       statement_timestamp() - make_interval(secs => $2::double precision) as kept_since,
       coalesce((select c.position from mainspring.cursors c where c.tenant_id = $1 and c.name = 'effects'), 0) as position;

-- name: events_between
select e.tenant_id, e.seq, e.id, e.kind, e.subject, e.actor_id, e.data::text as data, e.cause_seq, e.via, e.depth, e.trust,
       e.traceparent, e.occurred_at
  from mainspring.events e
 where e.tenant_id = $1 and e.seq > $2 and e.seq <= $3
 order by e.seq
 limit $4;

-- name: owed_of_events
-- What stands for these events.
select e.kind, e.key, e.event_seq, e.recipient_id, e.state
  from mainspring.effects e
 where e.tenant_id = $1 and e.event_seq = any($2::bigint[]);

-- name: standing_for
-- For each effect that is owed: whether a row stands under its name, or the run that it made before it was trimmed; and in what
-- they differ. Payloads are compared as jsonb: by what they mean, not by how they were written.
select e.id is not null or r.id is not null as stands,
       array_remove(array[
           case when coalesce(e.event_seq, r.event_seq) is distinct from w.event_seq
                then format('it stands for event %s', coalesce(coalesce(e.event_seq, r.event_seq)::text, 'none')) end,
           case when (coalesce(e.rule_id, r.rule_id), coalesce(e.rule_version, r.rule_version))
                     is distinct from (w.rule_id, w.rule_version)
                then format('it stands for version %s of rule %s', coalesce(coalesce(e.rule_version, r.rule_version)::text, 'none'),
                            coalesce(coalesce(e.rule_id, r.rule_id)::text, 'none')) end,
           case when e.family <> w.family then format('it is of the family %s', e.family) end,
           case when e.target <> w.target then format('it depends on %s', e.target) end,
           case when e.payload <> w.payload::jsonb
                then format('it says %s, not %s', left(e.payload::text, 300), left(w.payload::jsonb::text, 300)) end
       ], null) as differences
  from unnest($2::text[], $3::text[], $4::bigint[], $5::uuid[], $6::integer[], $7::text[], $8::text[], $9::text[])
       with ordinality as w (kind, key, event_seq, rule_id, rule_version, family, target, payload, n)
  left join lateral (
      select * from mainspring.effects f where f.tenant_id = $1 and f.kind = w.kind and f.key = w.key limit 1) e on true
  left join mainspring.runs r
    on r.tenant_id = $1 and r.effect_kind = w.kind and r.effect_key = w.key and e.id is null
 order by w.n;

-- name: effects_trace
-- What an event owes is known by its key: `<seq>:...`, `<seq>#...`, or the card that was made eligible. What a person asked for has none.
with bad as (
    select format('effect %s (%s %s) names %s', e.id, e.kind, e.key, coalesce('event ' || e.event_seq, 'no event')) as what
      from mainspring.effects e
     where e.tenant_id = $1
       and (e.event_seq::text is distinct from substring(e.key from '^([0-9]+)[:#]') and e.key ~ '^[0-9]+[:#]'
            or e.event_seq is null and e.key like 'dispatch:%')
    union all
    select format('effect %s (%s %s) names event %s, which is not in the log', e.id, e.kind, e.key, e.event_seq)
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
-- $2: the kinds of events that say how a run is. What a run is for never changes, so the last of them says it as the first did.
with told as (
    select r.id, e.seq,
           array(select mine.key
                   from jsonb_each(jsonb_build_object(
                            'agent_id', r.agent_id, 'card_id', r.card_id, 'event_seq', r.event_seq,
                            'rule_id', r.rule_id, 'rule_version', r.rule_version)) as mine
                  where e.data -> 'run' -> mine.key is distinct from mine.value
                  order by mine.key) as other
      from mainspring.runs r
      left join lateral (
          select v.seq, v.data
            from mainspring.events v
           where v.tenant_id = r.tenant_id and v.subject = r.id::text and v.kind = any($2::text[])
           order by v.seq desc
           limit 1) e on true
     where r.tenant_id = $1
), bad as (
    select format('run %s names no event', r.id) as what
      from mainspring.runs r
     where r.tenant_id = $1 and r.event_seq is null
    union all
    select format('run %s names event %s, which is not in the log', r.id, r.event_seq)
      from mainspring.runs r
     where r.tenant_id = $1 and r.event_seq is not null
       and not exists (select from mainspring.events v where v.tenant_id = r.tenant_id and v.seq = r.event_seq)
    union all
    select format('run %s was never said to be queued: there is no run.queued event of it', r.id)
      from mainspring.runs r
     where r.tenant_id = $1
       and not exists (select from mainspring.events v
                        where v.tenant_id = r.tenant_id and v.subject = r.id::text and v.kind = 'run.queued')
    union all
    select format('run %s has another %s than its event %s says', t.id, array_to_string(t.other, ', '), t.seq)
      from told t
     where t.seq is not null and cardinality(t.other) > 0
)
select (select count(*) from mainspring.runs where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: cards_are_as_told
-- Every change of a card has its event, which carries the card as it was then: the last one, as it is now.
with mine as (
    select c.id, c.deleted_at is not null as gone,
           jsonb_build_object(
               'number', c.number, 'title', c.title, 'body', c.body, 'state', c.state, 'state_version', c.state_version,
               'agent_id', c.agent_id, 'assignee_id', c.assignee_id, 'priority', c.priority, 'fields', c.fields,
               'version', c.version, 'eligible_version', c.eligible_version,
               'labels', array(select l.label
                                 from mainspring.card_labels l
                                where l.tenant_id = c.tenant_id and l.card_id = c.id
                                order by l.label collate "C")) as says
      from mainspring.cards c
     where c.tenant_id = $1
), told as (
    select m.id, m.gone, e.seq, e.kind,
           array(select one.key
                   from jsonb_each(m.says) as one
                  where e.data -> 'card' -> one.key is distinct from one.value
                  order by one.key) as other
      from mine m
      left join lateral (
          select v.seq, v.kind, v.data
            from mainspring.events v
           where v.tenant_id = $1 and v.subject = m.id::text and v.kind like 'card.%'
           order by v.seq desc
           limit 1) e on true
), bad as (
    select format('card %s has no event', id) as what from told where seq is null
    union all
    select format('card %s has another %s than its last event, %s, says', id, array_to_string(other, ', '), seq)
      from told
     where seq is not null and cardinality(other) > 0
    union all
    select format('card %s is %s, and its last event is %s', id, case when gone then 'deleted' else 'not deleted' end, kind)
      from told
     where seq is not null and gone <> (kind = 'card.deleted')
)
select (select count(*) from mainspring.cards where tenant_id = $1) as examined,
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
with head as (
    select h.head, h.rules_seq from mainspring.log_heads h where h.tenant_id = $1
), cursor as (
    select c.name, c.position from mainspring.cursors c where c.tenant_id = $1
), gaps as (
    select e.seq, lag(e.seq, 1, 0::bigint) over (order by e.seq) as before from mainspring.events e where e.tenant_id = $1
), last as (
    select coalesce(max(e.seq), 0) as seq from mainspring.events e where e.tenant_id = $1
), rules as (
    select coalesce(max(greatest(v.from_seq, v.until_seq)), 0) as seq from mainspring.rule_versions v where v.tenant_id = $1
), skipped as materialized (
    -- a hole that an operator has looked at and led the drain past
    select (e.data ->> 'first')::bigint as first, (e.data ->> 'last')::bigint as last
      from mainspring.events e
     where e.tenant_id = $1 and e.kind = 'log.skipped'
), bad as (
    select 'the log has no head: nothing can be appended' as what where not exists (select from head)
    union all
    select 'the log has no cursor named effects: nothing of it is drained'
     where not exists (select from cursor where name = 'effects')
    union all
    select format('the log has no event between %s and %s', before, seq)
      from gaps
     where seq <> before + 1
       and not exists (select from skipped s where s.first = before + 1 and s.last = seq - 1)
    union all
    select format('the log ends at %s, and its head says %s', last.seq, head.head) from head cross join last where head.head <> last.seq
    union all
    select format('the cursor %s stands at %s, behind the head %s', name, position, head) from cursor cross join head where position > head
    union all
    select format('effect %s (%s %s) is owed by event %s, and the cursor has gone back to %s', e.id, e.kind, e.key, e.event_seq, c.position)
      from mainspring.effects e
      join cursor c on c.name = 'effects'
     where e.tenant_id = $1 and e.event_seq > c.position
    union all
    select format('rules_seq says %s, and a rule changed at %s: drains that keep rules in memory would not see it', rules_seq, rules.seq)
      from head
     cross join rules
     where rules_seq < rules.seq
    union all
    select format('rules_seq says %s, behind the head %s', rules_seq, head) from head where rules_seq > head
    union all
    select format('event %s comes of event %s, which is no earlier one', e.seq, e.cause_seq)
      from mainspring.events e
     where e.tenant_id = $1 and e.cause_seq is not null and (e.cause_seq >= e.seq or e.cause_seq < 1)
)
select (select count(*) from gaps) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: log_may_be_drained
-- $2: the engine version that this server drains up to.
with bad as (
    select 'the schema does not say its engine version: no server drains it' as what
     where $1::uuid is not null and not exists (select from mainspring.engine)
    union all
    select format('the schema is of engine version %s, and this server drains up to %s: it leaves the log to newer ones', g.engine_version, $2::integer)
      from mainspring.engine g
     where g.engine_version > $2::integer
)
select 1::bigint as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: runs_are_as_told
-- $2, $3: the states of a run, and the kind of event that says each. States and their events are written together.
with said as (
    select * from unnest($2::text[], $3::text[]) as s (state, kind)
), told as (
    select r.id, r.state, said.kind as expected, e.kind, e.seq
      from mainspring.runs r
      left join said on said.state = r.state
      left join lateral (
          select v.seq, v.kind
            from mainspring.events v
           where v.tenant_id = r.tenant_id and v.subject = r.id::text and v.kind = any($3::text[])
           order by v.seq desc
           limit 1) e on true
     where r.tenant_id = $1
), bad as (
    select format('run %s is %s, and its last event is %s', id, state, coalesce(kind || ' at ' || seq, 'none')) as what
      from told
     where kind is distinct from expected
    union all
    -- what it does is trusted as far as it is, and as deep: its first event says so
    select format('run %s is trusted as %s, at depth %s, and event %s says %s, at depth %s', r.id, r.trust, r.depth, e.seq, e.trust, e.depth)
      from mainspring.runs r
     cross join lateral (
          select v.seq, v.trust, v.depth
            from mainspring.events v
           where v.tenant_id = r.tenant_id and v.subject = r.id::text and v.kind = 'run.queued'
           order by v.seq
           limit 1) e
     where r.tenant_id = $1 and (r.trust, r.depth) is distinct from (e.trust, e.depth)
)
select (select count(*) from mainspring.runs where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: attempts_are_open
with bad as (
    select format('run %s is running, and no attempt of its claim is open', r.id) as what
      from mainspring.runs r
     where r.tenant_id = $1 and r.state = 'running'
       and not exists (select from mainspring.run_attempts a
                        where a.tenant_id = r.tenant_id and a.run_id = r.id and a.claim_id = r.claim_id and a.ended_at is null)
    union all
    select format('run %s is %s, and its attempt %s never ended', r.id, r.state, a.n)
      from mainspring.runs r
      join mainspring.run_attempts a on a.tenant_id = r.tenant_id and a.run_id = r.id and a.ended_at is null
     where r.tenant_id = $1 and r.ended_at is not null
)
select (select count(*) from mainspring.runs where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: questions_are_asked
-- A lost run keeps its questions, for its replay; every other end closes them.
with bad as (
    select format('run %s needs input, and no question of it is open whose answer would queue it', r.id) as what
      from mainspring.runs r
     where r.tenant_id = $1 and r.state = 'needs_input'
       and not exists (select from mainspring.asks k
                        where k.tenant_id = r.tenant_id and k.run_id = r.id and k.state = 'open' and k.released)
    union all
    select format('run %s is %s, and its question %s is open', r.id, r.state, k.id)
      from mainspring.asks k
      join mainspring.runs r on r.tenant_id = k.tenant_id and r.id = k.run_id
     where k.tenant_id = $1 and k.state = 'open' and r.state in ('done', 'blocked', 'failed', 'cancelled', 'discarded')
    union all
    select format('question %s of run %s is %s, and its events are %s', k.id, k.run_id, k.state, coalesce(nullif(array_to_string(e.kinds, ', '), ''), 'none'))
      from mainspring.asks k
     cross join lateral (
          select array(select v.kind from mainspring.events v
                        where v.tenant_id = k.tenant_id and v.subject = k.id::text and v.kind in ('ask.opened', 'ask.answered')
                        order by v.seq) as kinds) e
     where k.tenant_id = $1
       -- what was in a hole that an operator has led the drain past is not known
       and not exists (select from mainspring.events s where s.tenant_id = $1 and s.kind = 'log.skipped')
       and e.kinds is distinct from case when k.state = 'answered' then '{ask.opened,ask.answered}'::text[] else '{ask.opened}' end
)
select (select count(*) from mainspring.asks where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: deaths_are_told
-- The last word of the log about an effect that has died, beside the effect. Dead ones are kept for ever. Of what broke on the news of
-- another break nothing is told (`UNTOLD` in spine/drain.py).
with told as (
    select distinct on (v.subject) v.subject, v.kind, v.seq
      from mainspring.events v
     where v.tenant_id = $1 and v.kind in ('effect.dead', 'effect.replayed', 'effect.discarded')
     order by v.subject, v.seq desc
), beside as (
    select e.id, e.kind, e.key, e.state, e.kind = 'event' and e.payload ? 'untold' as untold, t.kind as said, t.subject, t.seq
      from told t
      full join (select * from mainspring.effects e where e.tenant_id = $1) e on e.id::text = t.subject
), bad as (
    select format('effect %s (%s %s) is %s, and its last event is %s', id, kind, key, state, coalesce(said || ' at ' || seq, 'none')) as what
      from beside
     where (state = 'dead' and said is distinct from 'effect.dead' and not untold)
        or (state = 'discarded' and said is distinct from 'effect.discarded')
    union all
    select format('effect %s (%s %s) died at event %s, and is %s: it was neither replayed nor discarded', id, kind, key, seq, state)
      from beside
     where said = 'effect.dead' and state not in ('dead', 'discarded')
    union all
    select format('effect %s died at event %s, and is gone', subject, seq) from beside where said = 'effect.dead' and id is null
)
select (select count(*) from mainspring.effects where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: effects_attempts
-- $2, $3: how many attempts each kind may have. What depends on no target may have been deferred for too long before they are spent.
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
       and (e.deferrals = 0 or e.target <> '')
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
-- A launch that is done made exactly one run, of the agent and the card that it names, and a run was made by a launch that is
-- done, or was and has been trimmed since. $2: how long, in seconds, a finished effect is kept; $3: the snapshot's moment.
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
    select format('launch %s (%s) says %s, and its run %s is of agent %s and card %s', e.id, e.key, left(e.payload::text, 300), r.id, n.handle,
                  coalesce(r.card_id::text, 'none'))
      from mainspring.effects e
      join mainspring.runs r on r.tenant_id = e.tenant_id and r.effect_kind = e.kind and r.effect_key = e.key
      join mainspring.accounts n on n.tenant_id = r.tenant_id and n.id = r.agent_id
     where e.tenant_id = $1 and e.kind = 'launch'
       and (lower(btrim(e.payload ->> 'agent')) <> n.handle
            or e.payload ->> 'agent_id' <> r.agent_id::text
            or e.payload ->> 'card_id' <> r.card_id::text)
    union all
    select format('run %s was made by %s %s, which is not there and too young to have been trimmed', r.id, r.effect_kind, r.effect_key)
      from mainspring.runs r
     where r.tenant_id = $1 and r.created_at > $3::timestamptz - make_interval(secs => $2::double precision)
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
