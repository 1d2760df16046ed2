-- name: pace
-- How old the event is ($4), when the rule last fired on this card within its cooldown ($5), and how often within the hour for
-- events behind the last resume ($6). Asked under the rule's lock, in a statement of its own: it sees what the one that we
-- waited for has noted. What this effect ($7) itself has noted at an earlier attempt says that it has begun, and that stands.
-- With a card and without are two questions: `is not distinct from` is answered by no index. The least rest is asked for and not the
-- last moment, for which a planner walks back through what the rule fired on every card.
select exists (select from mainspring.firings f where f.tenant_id = $1 and f.effect_id = $7) as has_begun,
       (select extract(epoch from statement_timestamp() - e.occurred_at)::double precision
          from mainspring.events e where e.tenant_id = $1 and e.seq = $4) as event_age_seconds,
       coalesce(
           (select min(extract(epoch from statement_timestamp() - f.fired_at))
              from mainspring.firings f
             where f.tenant_id = $1 and f.rule_id = $2 and f.card_id = $3::uuid
               and f.fired_at > statement_timestamp() - make_interval(secs => $5::double precision)),
           (select min(extract(epoch from statement_timestamp() - f.fired_at))
              from mainspring.firings f
             where $3::uuid is null and f.tenant_id = $1 and f.rule_id = $2 and f.card_id is null
               and f.fired_at > statement_timestamp() - make_interval(secs => $5::double precision))
       )::double precision as rested_seconds,
       (select count(*)
          from mainspring.firings f
         where f.tenant_id = $1 and f.rule_id = $2 and f.event_seq > $6
           and f.fired_at > statement_timestamp() - interval '1 hour') as fired;

-- name: was_replayed
select exists (select from mainspring.events where tenant_id = $1 and subject = $2 and kind = 'effect.replayed');

-- name: later_launch_on_card
-- A launch of the same rule on the same card ($3, and as payloads have it, $4), for a later event: carried out already, whichever version owed
-- it; or still owed by the same version ($6), and for no event behind $7.
-- Asked as the system role: what payloads say may be looked up in an index only where no wall stands before it, and every launch that
-- waits asks this again and again.
select exists (
           select from mainspring.effects e
           where e.tenant_id = $1 and e.rule_id = $2 and e.state in ('pending', 'claimed')
             and e.payload ->> 'card_id' = $4::text and e.event_seq > $5 and e.kind = 'launch'
             and e.rule_version = $6 and e.event_seq <= $7
       ) or exists (
           select from mainspring.firings f
           where f.tenant_id = $1 and f.rule_id = $2 and f.card_id = $3::uuid and f.event_seq > $5 and f.kind = 'launch'
       );

-- name: later_launch_without_card
-- The same for events that have no card; a statement of its own, so that the index serves it whatever plan is cached.
select exists (
           select from mainspring.effects e
           where e.tenant_id = $1 and e.rule_id = $2 and e.state in ('pending', 'claimed')
             and e.payload ->> 'card_id' is null and e.event_seq > $3 and e.kind = 'launch'
             and e.rule_version = $4 and e.event_seq <= $5
       ) or exists (
           select from mainspring.firings f
           where f.tenant_id = $1 and f.rule_id = $2 and f.card_id is null and f.event_seq > $3 and f.kind = 'launch'
       );

-- name: live_run_of_rule
select exists (
    select from mainspring.runs
    where tenant_id = $1 and agent_id = $3 and rule_id = $2 and card_id is null
      and state in ('queued', 'claimed', 'running', 'needs_input'));

-- name: launches_of_agent
-- How often an agent was launched within the hour, whatever launched it, counted to $3 at most; and when the oldest of the
-- last $3 is an hour old.
select count(*) as launches,
       coalesce(extract(epoch from min(last.fired_at) + interval '1 hour' - statement_timestamp()), 0)::double precision
           as frees_seconds
from (
    select f.fired_at
    from mainspring.firings f
    where f.tenant_id = $1 and f.agent_id = $2 and f.kind = 'launch'
      and f.fired_at > statement_timestamp() - interval '1 hour'
    order by f.fired_at desc
    limit $3
) last;

-- name: lock_agent_for_launch
select id from mainspring.agents where tenant_id = $1 and id = $2 for no key update;

-- name: note_firing
-- Once an effect: a webhook is begun anew at every attempt.
insert into mainspring.firings (tenant_id, effect_id, kind, rule_id, card_id, agent_id, event_seq, fired_at, kept_until)
values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp(), clock_timestamp() + make_interval(secs => $8::double precision))
on conflict (tenant_id, effect_id) do nothing;

-- name: trim_firings
-- What is still owed stays, however old: forgotten, it would be noted anew by its next attempt, and count twice.
-- (Its effect is asked for in a value and not in a join, so that it is found by its key and no plan reads all effects.)
delete from mainspring.firings f
using (
    select o.tenant_id, o.effect_id
    from mainspring.firings o
    where o.kept_until < statement_timestamp()
      and (select e.state in ('pending', 'claimed')
           from mainspring.effects e where e.tenant_id = o.tenant_id and e.id = o.effect_id) is not true
    limit $1
    for update skip locked
) old
where f.tenant_id = old.tenant_id and f.effect_id = old.effect_id;
