-- name: offerable
-- What a session may have, topic by topic: the rows that it holds, and those that it could take, as an unbroken beginning of what
-- each topic owes its agent. A row that waits, or that another session holds, keeps those behind it; a steer passes deliveries by.
-- Topics are walked along the index of live rows, and of each no more than is offered at once.
with recursive walk as (
    (select e.topic_id from mainspring.effects e
      where e.tenant_id = $1 and e.recipient_id = $2 and e.family = 'offered' and e.state in ('pending', 'claimed')
      order by e.topic_id limit 1)
    union all
    select (select e.topic_id from mainspring.effects e
             where e.tenant_id = $1 and e.recipient_id = $2 and e.family = 'offered' and e.state in ('pending', 'claimed')
               and e.topic_id > walk.topic_id
             order by e.topic_id limit 1)
      from walk where walk.topic_id is not null
), asked as materialized (
    select w.topic_id
      from walk w
     where w.topic_id is not null
       and case when $4::uuid is null
                then not exists (select from mainspring.sessions s
                                  where s.tenant_id = $1 and s.agent_id = $2 and s.lease_until is not null and s.topic_id = w.topic_id)
                else w.topic_id = $4 end
     limit 200
), rows as (
    select e.*, bool_or(e.waits) over (partition by e.topic_id, e.kind order by e.event_seq, e.id) as blocked
      from asked a
      cross join lateral (
          select r.topic_id, r.id, r.kind, r.event_seq, r.payload, r.state,
                 r.state = 'claimed' and r.worker = $3 as mine,
                 case when r.state = 'claimed' then r.worker is distinct from $3
                      else r.not_before > statement_timestamp() end as waits
            from mainspring.effects r
           where r.tenant_id = $1 and r.recipient_id = $2 and r.topic_id = a.topic_id and r.family = 'offered'
             and r.state in ('pending', 'claimed')
           order by r.event_seq, r.id
           limit $6
      ) e
)
select id, kind, event_seq, (payload ->> 'message_id')::uuid as message_id, mine
  from rows
 where mine or (not blocked and (kind = 'steer' or $5::boolean))
 order by event_seq, id;

-- name: offer
-- The session's lease holds them, so they have none of their own that could run out.
update mainspring.effects e
   set state = 'claimed', worker = $3, claim_id = gen_random_uuid(), claimed_at = clock_timestamp(), lease_until = 'infinity'
 where e.tenant_id = $1 and e.id = any($2::uuid[]) and e.state = 'pending' and e.family = 'offered'
   and e.not_before <= statement_timestamp();

-- name: held
-- What a session holds, in the order in which it was owed.
select e.tenant_id, e.id, e.kind, e.key, e.payload::text as payload, e.event_seq, e.rule_id, e.rule_version, e.target, e.attempts,
       e.crashes, e.deferrals, e.epoch, e.claim_id, e.topic_id, e.claimed_at, (e.payload ->> 'message_id')::uuid as message_id,
       greatest(extract(epoch from clock_timestamp() - v.occurred_at), 0)::double precision as owed_seconds
  from mainspring.effects e
  left join mainspring.events v on v.tenant_id = e.tenant_id and v.seq = e.event_seq
 where e.tenant_id = $1 and e.worker = $2 and e.family = 'offered' and e.state = 'claimed'
 order by e.event_seq, e.id;

-- name: drop_unseen
-- Its recipient may not see the channel any more: it is owed to nobody.
update mainspring.effects
   set state = 'dropped', outcome = 'dropped(no member of the channel any more)', claim_id = null, lease_until = null,
       settled_at = clock_timestamp()
 where tenant_id = $1 and id = any($2::uuid[]) and family = 'offered' and state in ('pending', 'claimed');

-- name: blame
-- It may have ended the session that held it.
update mainspring.effects set crashes = crashes + 1 where tenant_id = $1 and id = $2 and state = 'claimed';

-- name: release
-- What a session held and did not read, when it ends.
update mainspring.effects
   set state = 'pending', claim_id = null, lease_until = null, not_before = clock_timestamp()
 where tenant_id = $1 and worker = $2 and family = 'offered' and state = 'claimed';

-- name: note_crash
insert into mainspring.effect_attempts (tenant_id, effect_id, claim_id, n, epoch, worker, started_at, ended_at, outcome, error)
select e.tenant_id, e.id, e.claim_id,
       1 + (select count(*) from mainspring.effect_attempts a where a.tenant_id = e.tenant_id and a.effect_id = e.id),
       e.epoch, e.worker, e.claimed_at, clock_timestamp(), $3, $4
  from mainspring.effects e
 where e.tenant_id = $1 and e.id = $2
on conflict do nothing;

-- name: note_reasons
-- What a reader said when it refused these: it stands with the attempt that it ended, and nowhere else.
update mainspring.effect_attempts a
   set error = g.reason
  from unnest($2::uuid[], $3::uuid[], $4::text[]) as g (effect_id, claim_id, reason)
 where a.tenant_id = $1 and a.effect_id = g.effect_id and a.claim_id = g.claim_id;

-- name: owed_count
select count(*)
  from mainspring.effects e
 where e.tenant_id = $1 and e.recipient_id = $2 and e.family = 'offered' and e.state in ('pending', 'claimed')
   and ($3::uuid is null or e.topic_id = $3);

-- name: pinned_for
-- The pins of the channels that an agent is in: what its context begins with.
select p.message_id
  from mainspring.members m
  join mainspring.pins p on p.tenant_id = m.tenant_id and p.channel_id = m.channel_id
 where m.tenant_id = $1 and m.account_id = $2
 order by p.channel_id, p.place
 limit 100;

-- name: waiting_sessions
-- Of these sessions, those whose agent is owed something that it could be offered now, or that have ended.
select s.tenant_id, s.id
  from unnest($1::uuid[], $2::uuid[]) as g (tenant_id, id)
  join mainspring.sessions s on s.tenant_id = g.tenant_id and s.id = g.id
 where s.lease_until is null
    or exists (select from mainspring.effects e
                where e.tenant_id = s.tenant_id and e.recipient_id = s.agent_id and e.family = 'offered' and e.state = 'pending'
                  and e.not_before <= statement_timestamp()
                  and (e.kind = 'steer' or s.state = 'ready')
                  and (s.topic_id is null or e.topic_id = s.topic_id));

-- name: to_wake
-- Agents that want to be woken, are owed something, and have nobody who reads it: no live session, no wake under way, and no run that
-- one made.
select a.tenant_id, a.id as agent_id,
       (select count(*) from mainspring.effects e
         where e.tenant_id = a.tenant_id and e.recipient_id = a.id and e.kind = 'wake'
           and e.created_at > coalesce((select max(s.acked_at) from mainspring.sessions s
                                         where s.tenant_id = a.tenant_id and s.agent_id = a.id), '-infinity')) as wakes
  from mainspring.agents a
 where a.wake and not a.paused
   and ($1::uuid is null or a.tenant_id = $1) and ($2::uuid is null or a.id = $2)
   and exists (select from mainspring.effects e
                where e.tenant_id = a.tenant_id and e.recipient_id = a.id and e.family = 'offered' and e.state = 'pending'
                  and e.not_before <= statement_timestamp())
   and not exists (select from mainspring.sessions s
                    where s.tenant_id = a.tenant_id and s.agent_id = a.id and s.lease_until is not null and s.topic_id is null)
   and ($3::boolean or not exists (select from mainspring.effects e
                    where e.tenant_id = a.tenant_id and e.recipient_id = a.id and e.kind = 'wake' and e.state in ('pending', 'claimed')))
   and not exists (select from mainspring.runs r
                    where r.tenant_id = a.tenant_id and r.agent_id = a.id and r.effect_kind = 'wake'
                      and r.state in ('queued', 'claimed', 'running', 'needs_input'))
 order by a.tenant_id, a.id
 limit $4;

-- name: oldest_owed
-- The oldest event that owes an agent something now, and how much it is owed in all.
select min(e.event_seq) as event_seq, count(*) as owed
  from mainspring.effects e
 where e.tenant_id = $1 and e.recipient_id = $2 and e.family = 'offered' and e.state in ('pending', 'claimed');

-- name: cause_of_delivery
-- The event that owes a delivery to this agent: an answer descends from it, before it is acked as well.
select v.seq, v.via, v.depth, v.trust
  from mainspring.effects e
  join mainspring.events v on v.tenant_id = e.tenant_id and v.seq = e.event_seq
 where e.tenant_id = $1 and e.id = $2 and e.family = 'offered' and e.recipient_id = $3;

-- name: receipts
-- What these events owe to agents, row by row: with the session that could take it, what comes before it in its topic, and, where nobody
-- reads, how far waking the agent is. $3: after how many seconds without a word a runner is not there.
select e.id, e.kind, e.event_seq, e.recipient_id as account_id, a.handle, e.state, e.attempts, e.outcome, e.error, e.worker,
       e.created_at, e.claimed_at, e.settled_at, e.not_before, e.not_before = 'infinity' as held,
       e.not_before > statement_timestamp() as later,
       (select t.error from mainspring.effect_attempts t
         where t.tenant_id = e.tenant_id and t.effect_id = e.id order by t.n desc limit 1) as said,
       s.id as session_id, s.state as session_state, s.turn as session_turn,
       (select count(*) from mainspring.effects b
         where e.state = 'pending' and b.tenant_id = e.tenant_id and b.recipient_id = e.recipient_id and b.topic_id = e.topic_id
           and b.family = 'offered' and b.state in ('pending', 'claimed') and b.kind = e.kind
           and (b.event_seq, b.id) < (e.event_seq, e.id)) as before,
       g.wake, g.paused, w.state as wake_state, w.not_before as wake_at, w.not_before > statement_timestamp() as wake_later,
       r.id as run_id, r.state as run_state,
       (select count(*) from mainspring.runners l
         where l.tenant_id = e.tenant_id and r.agent_id = any(l.agents) and not l.draining
           and l.last_seen_at > statement_timestamp() - make_interval(secs => $3::double precision)) as runners_seen
  from mainspring.effects e
  join mainspring.accounts a on a.tenant_id = e.tenant_id and a.id = e.recipient_id
  join mainspring.agents g on g.tenant_id = e.tenant_id and g.id = e.recipient_id
  left join lateral (
      select s.id, s.state, s.turn
        from mainspring.sessions s
       where s.tenant_id = e.tenant_id and s.agent_id = e.recipient_id and s.lease_until is not null
         and (s.topic_id = e.topic_id or s.topic_id is null)
       order by s.topic_id is null
       limit 1) s on true
  left join mainspring.effects w
    on w.tenant_id = e.tenant_id and w.recipient_id = e.recipient_id and w.kind = 'wake' and w.state in ('pending', 'claimed')
  left join lateral (
      select r.id, r.state, r.agent_id
        from mainspring.runs r
       where r.tenant_id = e.tenant_id and r.agent_id = e.recipient_id and r.effect_kind = 'wake'
         and r.state in ('queued', 'claimed', 'running', 'needs_input')
       order by r.id desc
       limit 1) r on true
 where e.tenant_id = $1 and e.event_seq = any($2::bigint[]) and e.family = 'offered'
 order by e.event_seq, e.id;
