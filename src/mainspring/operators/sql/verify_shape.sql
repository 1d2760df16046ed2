-- The checks of shape, and of what is late: asked and answered as those in verify.sql.

-- name: rows_are_in_shape
with bad as (
    select format('effect %s is %s, and %s', e.id, e.state, case when e.lease_until is null then 'has no lease' else 'has a lease' end) as what
      from mainspring.effects e
     where e.tenant_id = $1 and (e.state = 'claimed') <> (e.lease_until is not null)
    union all
    select format('effect %s is %s, and %s', e.id, e.state, case when e.claim_id is null then 'claimed by nobody' else 'has a claim' end)
      from mainspring.effects e
     where e.tenant_id = $1 and (e.state = 'claimed') <> (e.claim_id is not null)
    union all
    select format('effect %s is %s, and %s', e.id, e.state, case when e.settled_at is null then 'never ended' else 'has ended' end)
      from mainspring.effects e
     where e.tenant_id = $1 and (e.state in ('done', 'dropped', 'dead', 'discarded')) <> (e.settled_at is not null)
    union all
    select format('run %s is %s, and %s', r.id, r.state, case when r.lease_until is null then 'has no lease' else 'has a lease' end)
      from mainspring.runs r
     where r.tenant_id = $1 and (r.state in ('claimed', 'running')) <> (r.lease_until is not null)
    union all
    select format('run %s is %s by nobody', r.id, r.state)
      from mainspring.runs r
     where r.tenant_id = $1 and r.state in ('claimed', 'running') and (r.claim_id is null or r.runner_id is null)
    union all
    select format('run %s is %s, and %s', r.id, r.state, case when r.ended_at is null then 'never ended' else 'has ended' end)
      from mainspring.runs r
     where r.tenant_id = $1
       and (r.state in ('done', 'blocked', 'failed', 'cancelled', 'lost', 'discarded')) <> (r.ended_at is not null)
)
select (select count(*) from mainspring.effects where tenant_id = $1) + (select count(*) from mainspring.runs where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: rules_are_whole
-- Versions follow each other without a gap or an overlap: where one ends the next begins, at the seq of its own event, and the
-- last one has no end unless its rule is deleted.
with chain as (
    select v.*, lead(v.version) over w as next_version, lead(v.from_seq) over w as next_from, row_number() over w as n
      from mainspring.rule_versions v
     where v.tenant_id = $1
    window w as (partition by v.rule_id order by v.version)
), changes as (
    select e.seq, e.subject, e.data -> 'rule' as rule, e.data ->> 'change' as change
      from mainspring.events e
     where e.tenant_id = $1 and e.kind = 'rule.changed'
), bad as (
    select format('version %s of rule %s judges from no seq', c.version, c.rule_id) as what from chain c where c.from_seq is null
    union all
    select format('rule %s has no version %s', c.rule_id, c.n) from chain c where c.version <> c.n
    union all
    select format('rule %s has two versions that judge the same events: %s and %s', c.rule_id, c.version, c.next_version)
      from chain c
     where c.next_version is not null and (c.until_seq is null or c.until_seq > c.next_from)
    union all
    select format('rule %s has no version that judges events %s to %s', c.rule_id, c.until_seq + 1, c.next_from)
      from chain c
     where c.next_version is not null and c.until_seq < c.next_from
    union all
    select format('rule %s has no version that judges what comes after event %s, and is not deleted', c.rule_id, c.until_seq)
      from chain c
      join mainspring.rules r on r.tenant_id = $1 and r.id = c.rule_id
     where c.next_version is null and c.until_seq is not null and r.deleted_at is null
    union all
    select format('rule %s is deleted, and its version %s judges on', c.rule_id, c.version)
      from chain c
      join mainspring.rules r on r.tenant_id = $1 and r.id = c.rule_id
     where c.next_version is null and c.until_seq is null and r.deleted_at is not null
    union all
    select format('rule %s is at version %s and %s, and its last version is %s, %s', r.id, r.version, case when r.enabled then 'on' else 'off' end,
                  coalesce(c.version::text, 'none'), case when c.enabled then 'on' else 'off' end)
      from mainspring.rules r
      left join chain c on c.rule_id = r.id and c.next_version is null
     where r.tenant_id = $1 and r.deleted_at is null and (r.version, r.enabled) is distinct from (c.version, c.enabled)
    union all
    select format('version %s of rule %s judges from event %s, which does not say so', c.version, c.rule_id, c.from_seq)
      from chain c
     where c.from_seq is not null
       and not exists (select from changes e
                        where e.seq = c.from_seq and e.subject = c.rule_id::text
                          and e.rule ->> 'version' = c.version::text and (e.rule ->> 'enabled')::boolean = c.enabled
                          and e.rule -> 'when' = c.terms and e.rule -> 'do' = c.action and e.rule -> 'options' = c.options)
    union all
    select format('event %s says version %s of rule %s, which is not there', e.seq, e.rule ->> 'version', e.subject)
      from changes e
     where e.change <> 'deleted'
       and not exists (select from chain c where c.rule_id::text = e.subject and c.version::text = e.rule ->> 'version')
)
select (select count(*) from mainspring.rule_versions where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: limits_are_as_told
-- What stops a rule, or lets it run, is what its events say; what it may be counted by is noted; a rule that sends can sign, and
-- its runs wait as it says. $2: the snapshot's
-- moment. A note is kept for an hour at least.
with told as (
    select distinct on (e.subject) e.subject, e.seq, e.data -> 'rule' ->> 'paused_because' as paused_because
      from mainspring.events e
     where e.tenant_id = $1 and e.kind = 'rule.changed'
     order by e.subject, e.seq desc
), resumed as (
    select e.subject, coalesce(max(e.seq) filter (where e.data ->> 'owed' = 'run'), 0) as waived,
           coalesce(max(e.seq) filter (where e.data ->> 'owed' = 'discard'), 0) as given_up
      from mainspring.events e
     where e.tenant_id = $1 and e.kind = 'rule.changed' and e.data ->> 'change' = 'resumed'
     group by e.subject
), bad as (
    select format('rule %s is %s, and its last event (%s) says that it is %s', r.id, coalesce('paused: ' || r.paused_because, 'not paused'),
                  t.seq, coalesce('paused: ' || t.paused_because, 'not paused')) as what
      from mainspring.rules r
      join told t on t.subject = r.id::text
     where r.tenant_id = $1 and r.deleted_at is null and r.paused_because is distinct from t.paused_because
    union all
    select format('rule %s runs what it owes up to event %s and gives up what it owes up to event %s, and its resumes were at %s and %s',
                  r.id, r.waived_seq, r.given_up_seq, coalesce(s.waived, 0), coalesce(s.given_up, 0))
      from mainspring.rules r
      left join resumed s on s.subject = r.id::text
     where r.tenant_id = $1 and (r.waived_seq, r.given_up_seq) is distinct from (coalesce(s.waived, 0), coalesce(s.given_up, 0))
    union all
    select format('rule %s calls a webhook, and has no secret to sign with', r.id)
      from mainspring.rules r
      join mainspring.rule_versions v on v.tenant_id = r.tenant_id and v.rule_id = r.id and v.version = r.version
     where r.tenant_id = $1 and r.deleted_at is null and v.action ? 'webhook'
       and not exists (select from mainspring.webhook_secrets s where s.tenant_id = r.tenant_id and s.rule_id = r.id)
    union all
    select format('effect %s (%s %s) is done, and no limit counts it', e.id, e.kind, e.key)
      from mainspring.effects e
     where e.tenant_id = $1 and e.kind in ('launch', 'promote') and e.state = 'done'
       and e.settled_at > $2::timestamptz - interval '55 minutes'
       and not exists (select from mainspring.firings f where f.tenant_id = e.tenant_id and f.effect_id = e.id)
    union all
    select format('effect %s (%s %s) is of rule %s for event %s, and is counted for rule %s and event %s', e.id, e.kind, e.key,
                  coalesce(e.rule_id::text, 'none'), e.event_seq, coalesce(f.rule_id::text, 'none'), f.event_seq)
      from mainspring.firings f
      join mainspring.effects e on e.tenant_id = f.tenant_id and e.id = f.effect_id
     where f.tenant_id = $1 and (f.kind, f.rule_id, f.event_seq) is distinct from (e.kind, e.rule_id, e.event_seq)
    union all
    select format('run %s is queued, and %s', r.id, case when r.queued_until is null then 'its time to wait for a runner never ends'
                                                         else 'its time to wait for a runner ends, though it may wait for ever' end)
      from mainspring.runs r
     where r.tenant_id = $1 and r.state = 'queued' and (r.queued_until is null) <> (r.queued_timeout_seconds is null)
    union all
    select format('run %s waits for %s s on a runner with the labels {%s}, and version %s of its rule says otherwise', r.id,
                  coalesce(r.queued_timeout_seconds::text, 'no end of'), array_to_string(r.runner_labels, ', '), v.version)
      from mainspring.runs r
      join mainspring.rule_versions v on v.tenant_id = r.tenant_id and v.rule_id = r.rule_id and v.version = r.rule_version
     where r.tenant_id = $1
       and (r.queued_timeout_seconds is distinct from (v.options ->> 'queued_timeout_seconds')::double precision
            or to_jsonb(r.runner_labels) is distinct from coalesce(v.action #> '{launch,runner_labels}', '[]'))
)
select (select count(*) from mainspring.rules where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: cards_are_in_shape
with places as (
    select c.id, c.state, c.agent_id, c.eligible_version, c.eligible_seq, c.deleted_at is not null as gone, b.key,
           (select (s ->> 'eligible')::boolean from jsonb_array_elements(b.states) as s where s ->> 'name' = c.state limit 1) as eligible
      from mainspring.cards c
      join mainspring.boards b on b.tenant_id = c.tenant_id and b.id = c.board_id
     where c.tenant_id = $1
), bad as (
    select format('card %s is in %s, and board %s has no such state', id, state, key) as what
      from places
     where eligible is null and not gone
    union all
    select format('card %s is %s, and %s', id, case when agent_id is null then 'not pinned' else 'pinned, in ' || state end,
                  case when eligible_version is null then 'is not to be dispatched' else 'is to be dispatched' end)
      from places
     where eligible is not null and (eligible_version is not null) <> (not gone and agent_id is not null and eligible)
    union all
    select format('card %s became eligible at version %s, and event %s does not say so', p.id, p.eligible_version, coalesce(p.eligible_seq::text, 'none'))
      from places p
     where p.eligible_version is not null
       and not exists (select from mainspring.events e
                        where e.tenant_id = $1 and e.seq = p.eligible_seq and e.subject = p.id::text
                          and e.data -> 'card' ->> 'eligible_version' = p.eligible_version::text)
    union all
    select format('board %s would call its next card %s-%s, and has one of that number or a later one', b.key, b.key, b.next_number)
      from mainspring.boards b
     where b.tenant_id = $1
       and exists (select from mainspring.cards c where c.tenant_id = b.tenant_id and c.board_id = b.id and c.number >= b.next_number)
    union all
    select format('card %s was never created: no event says so', c.id)
      from mainspring.cards c
     where c.tenant_id = $1
       and not exists (select from mainspring.events e where e.tenant_id = c.tenant_id and e.subject = c.id::text and e.kind = 'card.created')
       -- what was in a hole that an operator has led the drain past is not known
       and not exists (select from mainspring.events s where s.tenant_id = $1 and s.kind = 'log.skipped')
    union all
    select format('board %s answers %s with %s, a state that it has not', b.key, a.key, a.value)
      from mainspring.boards b
     cross join lateral jsonb_each_text(b.reflect) as a
     where b.tenant_id = $1
       and not exists (select from jsonb_array_elements(b.states) as s where s ->> 'name' = a.value)
)
select (select count(*) from mainspring.cards where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: waits_have_an_end
-- A paused rule's rows are held for ever, until somebody resumes it; deliveries, until a person speaks in a topic in which agents have
-- written more than $4 times in a row; nothing else is. $2: the snapshot's moment; $3: the longest wait, in seconds, that anybody may ask
-- for. One that was drained when the person had spoken is found by a net: only then it is nobody's.
with bad as (
    select format('effect %s (%s %s) is held until %s, and %s', e.id, e.kind, e.key, e.not_before,
                  case when e.family = 'offered' then 'a person has spoken' when r.id is null then 'no rule owes it'
                       else 'its rule is not paused' end) as what
      from mainspring.effects e
      left join mainspring.rules r on r.tenant_id = e.tenant_id and r.id = e.rule_id
     where e.tenant_id = $1 and e.state = 'pending'
       and e.not_before > $2::timestamptz + make_interval(secs => $3::double precision)
       and not (e.not_before = 'infinity' and r.paused_at is not null)
       and not (e.not_before = 'infinity' and e.family = 'offered'
                and (e.created_at > $2::timestamptz - interval '60 s'
                     or exists (select from mainspring.topics t
                                 where t.tenant_id = e.tenant_id and t.id = e.topic_id and t.hops > $4::integer)))
    union all
    select format('nothing is sent to %s before %s', b.target, b.open_until)
      from mainspring.breakers b
     where b.tenant_id = $1 and b.open_until > $2::timestamptz + make_interval(secs => $3::double precision)
    union all
    select format('run %s is queued, and may not be claimed before %s', r.id, r.not_before)
      from mainspring.runs r
     where r.tenant_id = $1 and r.state = 'queued'
       and r.not_before > $2::timestamptz + make_interval(secs => $3::double precision)
)
select (select count(*) from mainspring.effects where tenant_id = $1 and state = 'pending')
       + (select count(*) from mainspring.runs where tenant_id = $1 and state = 'queued') as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: keys_stand_for_events
with bad as (
    select format('key %L stands for event %s, which is not there', k.key, coalesce(k.seq::text, 'none')) as what
      from mainspring.event_keys k
     where k.tenant_id = $1
       and not exists (select from mainspring.events e where e.tenant_id = k.tenant_id and e.seq = k.seq and e.kind like 'custom.%')
       -- what was in a hole that an operator has led the drain past is not known
       and not exists (select from mainspring.events s where s.tenant_id = $1 and s.kind = 'log.skipped')
)
select (select count(*) from mainspring.event_keys where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: due_is_never_late
-- Claims look first where due_tenants says: an entry later than its rows would hide them. What is offered is not claimed.
with real as (
    select e.tenant_id, e.family, min(e.not_before) as next_due, count(*) as n
      from mainspring.effects e
     where e.tenant_id = $1 and e.state = 'pending' and e.family = 'executed' and e.not_before < 'infinity'
     group by e.tenant_id, e.family
), bad as (
    select format('%s pending effects are due from %s, and due_tenants says %s', r.n, r.next_due, coalesce(d.next_due::text, 'nothing')) as what
      from real r
      left join mainspring.due_tenants d on d.tenant_id = r.tenant_id and d.family = r.family
     where d.next_due is null or d.next_due > r.next_due
)
select (select coalesce(sum(n), 0)::bigint from real) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: nothing_is_overdue
-- What nobody does although it is due, with its age. $2: the snapshot's moment; $3: how many seconds late is late. A run that has had no
-- runner yet is told, and no finding: runners come and go.
with late as (
    select $2::timestamptz - make_interval(secs => $3::double precision) as before
), bad as (
    select format('%s events from %s on are not drained, the oldest for %s', count(*), min(e.seq),
                  date_trunc('second', $2::timestamptz - min(e.occurred_at))) as what,
           count(*) as n
      from mainspring.cursors c
      join mainspring.events e on e.tenant_id = c.tenant_id and e.seq > c.position
     cross join late
     where c.tenant_id = $1 and c.name = 'effects' and e.occurred_at < late.before
    having count(*) > 0
    union all
    select format('%s pending effects of kind %s are due, and nobody takes them, the oldest for %s', count(*), e.kind,
                  date_trunc('second', $2::timestamptz - min(e.not_before))),
           count(*)
      from mainspring.effects e
     cross join late
     where e.tenant_id = $1 and e.state = 'pending' and e.family = 'executed' and e.not_before < late.before
       -- what waits for a target that is down is not overdue: one row at a time tries whether it is back
       and not exists (select from mainspring.breakers b
                        where b.tenant_id = e.tenant_id and b.target = e.target and b.open_until is not null)
     group by e.kind
    union all
    select format('effect %s (%s %s) is held by %s, whose lease ran out %s ago', e.id, e.kind, e.key, coalesce(e.worker, 'nobody'),
                  date_trunc('second', $2::timestamptz - e.lease_until)),
           1
      from mainspring.effects e
     cross join late
     where e.tenant_id = $1 and e.state = 'claimed' and e.lease_until < late.before
    union all
    select format('run %s is %s, and the lease of its runner ran out %s ago', r.id, r.state,
                  date_trunc('second', $2::timestamptz - r.lease_until)),
           1
      from mainspring.runs r
     cross join late
     where r.tenant_id = $1 and r.state in ('claimed', 'running')
       -- after an outage every runner is given a lease to speak up, which is as long as the one that it has
       and r.lease_until < late.before - make_interval(secs => $3::double precision)
    union all
    select format('session %s is %s, and its lease ran out %s ago', s.id, s.state, date_trunc('second', $2::timestamptz - s.lease_until)), 1
      from mainspring.sessions s
     cross join late
     where s.tenant_id = $1 and s.lease_until < late.before
), unread as (
    -- agents' programs come and go, as runners do; what is held for a person is not due
    select count(*) as n, min(e.not_before) as since
      from mainspring.effects e
     where e.tenant_id = $1 and e.family = 'offered' and e.state = 'pending' and e.not_before <= $2::timestamptz
), waiting as (
    select count(*) as n, min(r.not_before) as since
      from mainspring.runs r
     where r.tenant_id = $1 and r.state = 'queued' and r.not_before <= $2::timestamptz
)
select (select count(*) from mainspring.effects where tenant_id = $1 and state in ('pending', 'claimed'))
       + (select count(*) from mainspring.runs where tenant_id = $1 and state in ('queued', 'claimed', 'running')) as examined,
       (select coalesce(sum(n), 0)::bigint from bad) as count, array(select what from bad order by what limit 20) as violations,
       concat_ws('; ',
           case when waiting.n > 0
                then format('%s runs wait for a runner, the oldest for %s', waiting.n, date_trunc('second', $2::timestamptz - waiting.since)) end,
           case when unread.n > 0
                then format('%s deliveries wait to be read, the oldest for %s', unread.n, date_trunc('second', $2::timestamptz - unread.since))
                end) as note
  from waiting
 cross join unread;
