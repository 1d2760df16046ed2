-- name: letters
-- One page of dead letters, the latest first: effects and runs in one order, so that neither hides behind the other. Each part is
-- read by its own index, and no further than the page; what the letters hold is read for these alone.
-- In all of these a rule and an agent are null where any is meant: an effect's agent is whom it launches or pins, by the handle that a
-- rule names or the id that a pin has.
select id, since
  from (
    (select e.kind, e.id, e.settled_at as since
       from mainspring.effects e
      where e.tenant_id = $1 and e.state = 'dead' and (e.settled_at, e.id) < ($2, $3::uuid)
        and ($5::uuid is null or e.rule_id = $5)
        and ($6::uuid is null or e.kind in ('launch', 'promote')
             and (e.payload ->> 'agent' = $7::text or e.payload ->> 'agent_id' = $6::text))
      order by e.settled_at desc, e.id desc
      limit $4)
    union all
    (select 'run', r.id, r.ended_at as since
       from mainspring.runs r
      where r.tenant_id = $1 and r.state in ('failed', 'lost') and (r.ended_at, r.id) < ($2, $3::uuid)
        and ($5::uuid is null or r.rule_id = $5) and ($6::uuid is null or r.agent_id = $6)
      order by r.ended_at desc, r.id desc
      limit $4)
  ) both_kinds
 order by since desc, id desc
 limit $4;

-- name: letters_of_effects
select e.kind, e.id, e.settled_at as since
  from mainspring.effects e
 where e.tenant_id = $1 and e.state = 'dead' and (e.settled_at, e.id) < ($2, $3::uuid) and e.kind = $8
   and ($5::uuid is null or e.rule_id = $5)
   and ($6::uuid is null or e.kind in ('launch', 'promote')
        and (e.payload ->> 'agent' = $7::text or e.payload ->> 'agent_id' = $6::text))
 order by e.settled_at desc, e.id desc
 limit $4;

-- name: letters_of_runs
select 'run', r.id, r.ended_at as since
  from mainspring.runs r
 where r.tenant_id = $1 and r.state in ('failed', 'lost') and (r.ended_at, r.id) < ($2, $3::uuid)
   and ($5::uuid is null or r.rule_id = $5) and ($6::uuid is null or r.agent_id = $6)
 order by r.ended_at desc, r.id desc
 limit $4;

-- name: letters_by_age
-- Oldest event first, from where the last look ended; those alone that lay there at $5. (An index on
-- coalesce() would not be entered behind the walls: nobody vouches that it does not leak.)
select kind, id, outcome, error, age
  from (
    (select e.kind, e.id, e.outcome, left(e.error, 500) as error, case when e.event_seq is null then 9223372036854775807 else e.event_seq end as age
       from mainspring.effects e
      where e.tenant_id = $1 and e.state = 'dead' and (case when e.event_seq is null then 9223372036854775807 else e.event_seq end, e.id) > ($2::bigint, $3::uuid)
        and e.settled_at <= $5
        and ($6::uuid is null or e.rule_id = $6)
        and ($7::uuid is null or e.kind in ('launch', 'promote')
             and (e.payload ->> 'agent' = $8::text or e.payload ->> 'agent_id' = $7::text))
      order by case when e.event_seq is null then 9223372036854775807 else e.event_seq end, e.id
      limit $4)
    union all
    (select 'run' as kind, r.id, r.outcome, left(r.error, 500) as error, case when r.event_seq is null then 9223372036854775807 else r.event_seq end as age
       from mainspring.runs r
      where r.tenant_id = $1 and r.state in ('failed', 'lost')
        and (case when r.event_seq is null then 9223372036854775807 else r.event_seq end, r.id) > ($2::bigint, $3::uuid) and r.ended_at <= $5
        and ($6::uuid is null or r.rule_id = $6) and ($7::uuid is null or r.agent_id = $7)
      order by case when r.event_seq is null then 9223372036854775807 else r.event_seq end, r.id
      limit $4)
  ) both_kinds
 order by age, id
 limit $4;

-- name: effects_by_age
select e.kind, e.id, e.outcome, left(e.error, 500) as error, case when e.event_seq is null then 9223372036854775807 else e.event_seq end as age
  from mainspring.effects e
 where e.tenant_id = $1 and e.state = 'dead' and (case when e.event_seq is null then 9223372036854775807 else e.event_seq end, e.id) > ($2::bigint, $3::uuid)
   and e.settled_at <= $5 and e.kind = $9
   and ($6::uuid is null or e.rule_id = $6)
   and ($7::uuid is null or e.kind in ('launch', 'promote')
        and (e.payload ->> 'agent' = $8::text or e.payload ->> 'agent_id' = $7::text))
 order by case when e.event_seq is null then 9223372036854775807 else e.event_seq end, e.id
 limit $4;

-- name: runs_by_age
select 'run' as kind, r.id, r.outcome, left(r.error, 500) as error, case when r.event_seq is null then 9223372036854775807 else r.event_seq end as age
  from mainspring.runs r
 where r.tenant_id = $1 and r.state in ('failed', 'lost')
   and (case when r.event_seq is null then 9223372036854775807 else r.event_seq end, r.id) > ($2::bigint, $3::uuid) and r.ended_at <= $5
   and ($6::uuid is null or r.rule_id = $6) and ($7::uuid is null or r.agent_id = $7)
 order by case when r.event_seq is null then 9223372036854775807 else r.event_seq end, r.id
 limit $4;

-- name: count_letters
select (select count(*) from mainspring.effects e
         where e.tenant_id = $1 and e.state = 'dead' and ($2::text is null or e.kind = $2)
           and ($3::uuid is null or e.rule_id = $3)
           and ($4::uuid is null or e.kind in ('launch', 'promote')
                and (e.payload ->> 'agent' = $5::text or e.payload ->> 'agent_id' = $4::text))
           and ($6::boolean or e.family = 'executed'
                or exists (select from mainspring.topics t
                             join mainspring.channels c on c.tenant_id = t.tenant_id and c.id = t.channel_id
                            where t.tenant_id = e.tenant_id and t.id = e.topic_id
                              and (c.visibility = 'open'
                                   or exists (select from mainspring.members m
                                               where m.tenant_id = c.tenant_id and m.channel_id = c.id and m.account_id = $7::uuid)))))
     + (select count(*) from mainspring.runs r
         where r.tenant_id = $1 and r.state in ('failed', 'lost') and ($2::text is null or $2 = 'run')
           and ($3::uuid is null or r.rule_id = $3) and ($4::uuid is null or r.agent_id = $4)) as count;

-- name: letters_by_id
-- Effects and runs of these ids, dead or not: what was asked for and is not dead is said to be so.
select e.kind, e.id, e.state, e.outcome, e.error, coalesce(e.settled_at, e.created_at) as since, e.attempts, e.event_seq,
       coalesce(v.data -> 'card' ->> 'key', nullif(v.subject, ''), e.key) as subject, u.name as rule,
       case when e.kind in ('launch', 'promote') then coalesce(e.payload ->> 'agent', a.handle) end as agent, false as paused, e.key
  from mainspring.effects e
  left join mainspring.events v on v.tenant_id = e.tenant_id and v.seq = e.event_seq
  left join mainspring.rules u on u.tenant_id = e.tenant_id and u.id = e.rule_id
  left join mainspring.accounts a
    on a.tenant_id = e.tenant_id and a.id = case e.kind when 'launch' then (e.payload ->> 'agent_id')::uuid end
 where e.tenant_id = $1 and e.id = any($2::uuid[])
union all
select 'run', r.id, r.state, r.outcome, r.error, coalesce(r.ended_at, r.created_at), r.attempts, r.event_seq,
       coalesce(r.card_key, a.handle), u.name, a.handle, g.paused, r.effect_key
  from mainspring.runs r
  join mainspring.accounts a on a.tenant_id = r.tenant_id and a.id = r.agent_id
  join mainspring.agents g on g.tenant_id = r.tenant_id and g.id = r.agent_id
  left join mainspring.rules u on u.tenant_id = r.tenant_id and u.id = r.rule_id
 where r.tenant_id = $1 and r.id = any($2::uuid[]);

-- name: deliveries_by_id
-- What these deliveries were to carry, by name.
select e.id, m.id as message_id, (e.payload ->> 'revision')::integer as revision, c.name as channel, t.name as topic, w.handle as author,
       r.handle as recipient
  from mainspring.effects e
  join mainspring.messages m on m.tenant_id = e.tenant_id and m.id = (e.payload ->> 'message_id')::uuid
  join mainspring.channels c on c.tenant_id = m.tenant_id and c.id = m.channel_id
  join mainspring.topics t on t.tenant_id = m.tenant_id and t.id = m.topic_id
  join mainspring.accounts w on w.tenant_id = m.tenant_id and w.id = m.author_id
  join mainspring.accounts r on r.tenant_id = e.tenant_id and r.id = e.recipient_id
 where e.tenant_id = $1 and e.id = any($2::uuid[]);

-- name: heaps
-- Letters that say the same, counted here, the most frequent first; their texts are folded into causes by the caller. Deliveries are
-- counted for who operates ($3), and for an account ($4) that sees their channel.
select kind, outcome, error, count(*) as count, min(since) as oldest, max(since) as newest,
       (array_agg(id order by since, id))[1:5] as ids
  from (
    select e.kind, e.id, e.outcome, left(e.error, 500) as error, e.settled_at as since
      from mainspring.effects e where e.tenant_id = $1 and e.state = 'dead'
       and ($3::uuid is null or e.rule_id = $3)
       and ($4::uuid is null or e.kind in ('launch', 'promote')
            and (e.payload ->> 'agent' = $5::text or e.payload ->> 'agent_id' = $4::text))
       and ($6::boolean or e.family = 'executed'
            or exists (select from mainspring.topics t
                         join mainspring.channels c on c.tenant_id = t.tenant_id and c.id = t.channel_id
                        where t.tenant_id = e.tenant_id and t.id = e.topic_id
                          and (c.visibility = 'open'
                               or exists (select from mainspring.members m
                                           where m.tenant_id = c.tenant_id and m.channel_id = c.id and m.account_id = $7::uuid))))
    union all
    select 'run', r.id, r.outcome, left(r.error, 500), r.ended_at
      from mainspring.runs r where r.tenant_id = $1 and r.state in ('failed', 'lost')
       and ($3::uuid is null or r.rule_id = $3) and ($4::uuid is null or r.agent_id = $4)
  ) letters
 where ($2::text is null or kind = $2)
 group by kind, outcome, error
 order by count(*) desc, kind, outcome, error
 limit $8;

-- name: effect_bodies
-- What effects were to do, whole.
select e.id, e.key, e.payload, e.rule_id, e.rule_version, e.epoch, e.crashes, e.deferrals, e.target
  from mainspring.effects e
 where e.tenant_id = $1 and e.id = any($2::uuid[]);

-- name: run_bodies
-- What runs were to do, whole.
select r.id, r.prompt, r.trigger, r.rule_id, r.rule_version, r.effect_kind, r.effect_key
  from mainspring.runs r
 where r.tenant_id = $1 and r.id = any($2::uuid[]);

-- name: agent_by_id
select n.id, n.handle as name
  from mainspring.accounts n
  join mainspring.agents a on a.tenant_id = n.tenant_id and a.id = n.id
 where n.tenant_id = $1 and n.id = $2;

-- name: agent_by_handle
select n.id, n.handle as name
  from mainspring.accounts n
  join mainspring.agents a on a.tenant_id = n.tenant_id and a.id = n.id
 where n.tenant_id = $1 and n.handle = $2;
