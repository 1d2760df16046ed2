-- name: offerable
-- What a session holds, and what it could take besides: of each line an unbroken beginning, the oldest first, and of each kind as much
-- as is offered at once ($6). A row that waits, or that another session holds, keeps those behind it. Only lines with something to
-- take, or with a head that the session holds, are looked at; of the latter there are no more than places that are taken.
with places as materialized (
    select k.kind,
           greatest(0, $6::bigint - (select count(*) from mainspring.effects h
                                      where h.tenant_id = $1 and h.worker = $3 and h.kind = k.kind and h.family = 'offered'
                                        and h.state = 'claimed')) as free
      from unnest(case when $5::boolean then array['steer', 'deliver'] else array['steer'] end) as k (kind)
), found as (
    select t.id, t.kind, t.topic_id, t.event_seq, t.payload, false as mine
      from places p
     cross join lateral (
         select r.*
           from (select l.topic_id
                   from mainspring.lines($1, $2, p.kind, $4) l
                  where l.due or l.holder = $3
                  order by l.event_seq, l.id
                  limit $6) a
          cross join lateral (
              select e.*, bool_or(e.waits) over (order by e.event_seq, e.id) as blocked
                from (select f.id, f.kind, f.topic_id, f.event_seq, f.payload, f.state = 'claimed' and f.worker = $3 as mine,
                             case when f.state = 'claimed' then f.worker is distinct from $3
                                  else f.not_before > statement_timestamp() end as waits
                        from mainspring.effects f
                       where f.tenant_id = $1 and f.recipient_id = $2 and f.kind = p.kind and f.topic_id = a.topic_id
                         and f.family = 'offered' and f.state in ('pending', 'claimed')
                       order by f.event_seq, f.id
                       limit $6) e
          ) r
          where not r.mine and not r.blocked
          order by r.event_seq, r.id
          limit p.free
     ) t
     where p.free > 0
    union all
    select h.id, h.kind, h.topic_id, h.event_seq, h.payload, true
      from mainspring.effects h
     where h.tenant_id = $1 and h.worker = $3 and h.family = 'offered' and h.state = 'claimed'
)
select id, kind, topic_id, event_seq, (payload ->> 'message_id')::uuid as message_id, (payload ->> 'revision')::bigint as revision, mine
  from found
 order by event_seq, id;

-- name: offer
-- The session's lease holds them, so they have none of their own that could run out. What somebody else has taken or put off since they
-- were looked at keeps those that stand behind it in its line. What is offered at once has one time: it is read after what was
-- offered before, however old it is.
with free as materialized (
    select e.id
      from mainspring.effects e
     where e.tenant_id = $1 and e.id = any($2::uuid[]) and e.state = 'pending' and e.family = 'offered'
       and e.not_before <= statement_timestamp()
     order by e.id
       for no key update
), unbroken as materialized (
    select w.id, bool_and(f.id is not null) over (partition by w.topic_id, w.kind order by w.event_seq, w.id) as free
      from mainspring.effects w
      left join free f on f.id = w.id
     where w.tenant_id = $1 and w.id = any($2::uuid[])
)
update mainspring.effects e
   set state = 'claimed', worker = $3, claim_id = gen_random_uuid(), claimed_at = statement_timestamp(), lease_until = 'infinity'
  from unbroken u
 where u.free and e.tenant_id = $1 and e.id = u.id and e.state = 'pending' and e.family = 'offered'
   and e.not_before <= statement_timestamp();

-- name: held
-- What a session holds, in the order in which it was offered, and so is read: of what came at once the steers first, and the oldest.
select e.tenant_id, e.id, e.kind, e.key, e.payload::text as payload, e.event_seq, e.rule_id, e.rule_version, e.target, e.attempts,
       e.crashes, e.deferrals, e.epoch, e.claim_id, e.topic_id, e.claimed_at, (e.payload ->> 'message_id')::uuid as message_id,
       greatest(extract(epoch from clock_timestamp() - v.occurred_at), 0)::double precision as owed_seconds
  from mainspring.effects e
  left join mainspring.events v on v.tenant_id = e.tenant_id and v.seq = e.event_seq
 where e.tenant_id = $1 and e.worker = $2 and e.family = 'offered' and e.state = 'claimed'
 order by e.claimed_at, e.kind = 'deliver', e.event_seq, e.id;

-- name: drop_outdated
-- Of these, what is owed anew as its author finished it, and was offered to nobody before that: it is read once.
update mainspring.effects e
   set state = 'dropped', outcome = 'dropped(owed anew at a later revision)', settled_at = clock_timestamp()
 where e.tenant_id = $1 and e.id = any($2::uuid[]) and e.family = 'offered' and e.state = 'pending'
   and exists (select from mainspring.effects n
                where n.tenant_id = e.tenant_id and n.recipient_id = e.recipient_id and n.topic_id = e.topic_id
                  and n.family = 'offered' and n.state in ('pending', 'claimed') and n.event_seq > e.event_seq
                  and n.payload ->> 'message_id' = e.payload ->> 'message_id')
returning e.id;

-- name: lock_held
select e.id
  from mainspring.effects e
 where e.tenant_id = $1 and e.worker = $2 and e.id = any($3::uuid[]) and e.family = 'offered' and e.state = 'claimed'
 order by e.id
   for update;

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
-- What a session held and did not read, when it ends. What was to be cancelled meanwhile is.
update mainspring.effects
   set state = case when cancel_requested then 'dropped' else 'pending' end,
       outcome = case when cancel_requested then 'dropped(cancelled)' else outcome end,
       settled_at = case when cancel_requested then clock_timestamp() end,
       claim_id = null, lease_until = null, not_before = clock_timestamp()
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
-- Of these sessions, those that could be offered something now which they do not hold, or that have ended. $3: as much of a kind as is
-- offered at once.
with asked as materialized (
    select s.tenant_id, s.id, s.id::text as name, s.agent_id, s.topic_id, s.state, s.lease_until
      from unnest($1::uuid[], $2::uuid[]) as g (tenant_id, id)
      join mainspring.sessions s on s.tenant_id = g.tenant_id and s.id = g.id
)
select s.tenant_id, s.id
  from asked s
 where s.lease_until is null
    or exists (
        select from unnest(case when s.state = 'ready' then array['steer', 'deliver'] else array['steer'] end) as k (kind)
         cross join lateral mainspring.lines(s.tenant_id, s.agent_id, k.kind, s.topic_id) l
         where (l.due
                or (l.holder = s.name
                    and (select e.state = 'pending' and e.not_before <= statement_timestamp()
                           from mainspring.effects e
                          where e.tenant_id = s.tenant_id and e.recipient_id = s.agent_id and e.kind = k.kind and e.topic_id = l.topic_id
                            and e.family = 'offered' and e.state in ('pending', 'claimed')
                            and (e.state = 'pending' or e.worker is distinct from s.name)
                          order by e.event_seq, e.id
                          limit 1)))
           and (select count(*) from mainspring.effects h
                 where h.tenant_id = s.tenant_id and h.worker = s.name and h.kind = k.kind and h.family = 'offered'
                   and h.state = 'claimed') < $3::bigint);

-- name: to_wake
-- Agents that want to be woken, are owed something that could be read now, and have nobody who reads it: no live session but those of
-- runs, each of which reads its own topic, no wake under way, and no run that one made. $5: of all tenants but these.
with idle as materialized (
    select a.tenant_id, a.id
      from mainspring.agents a
     where a.wake and not a.paused
       and ($1::uuid is null or a.tenant_id = $1) and ($2::uuid is null or a.id = $2) and not (a.tenant_id = any($5::uuid[]))
       and not exists (select from mainspring.sessions s
                        where s.tenant_id = a.tenant_id and s.agent_id = a.id and s.lease_until is not null and s.topic_id is null)
       and ($3::boolean or not exists (select from mainspring.effects e
                        where e.tenant_id = a.tenant_id and e.recipient_id = a.id and e.kind = 'wake'
                          and e.state in ('pending', 'claimed')))
       and not exists (select from mainspring.runs r
                        where r.tenant_id = a.tenant_id and r.agent_id = a.id and r.effect_kind = 'wake'
                          and r.state in ('queued', 'claimed', 'running', 'needs_input'))
)
select i.tenant_id, i.id as agent_id,
       (select count(*) from mainspring.effects e
         where e.tenant_id = i.tenant_id and e.recipient_id = i.id and e.kind = 'wake'
           and e.created_at > coalesce((select max(s.acked_at) from mainspring.sessions s
                                         where s.tenant_id = i.tenant_id and s.agent_id = i.id), '-infinity')) as wakes
  from idle i
 where exists (select from unnest(array['steer', 'deliver']) as k (kind)
                cross join lateral mainspring.lines(i.tenant_id, i.id, k.kind, null) l
                where l.due)
 order by i.tenant_id, i.id
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
-- reads, how far waking the agent is. One that was refused and comes again later keeps all behind it waiting: the first such is named.
-- `unseen`: the recipient may not see the channel any more. $3: after how many seconds without a word a runner is not there.
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
       z.message_seq as ahead_seq, z.attempts as ahead_attempts, z.not_before as ahead_at, z.said as ahead_said,
       g.wake, g.paused, w.state as wake_state, w.not_before as wake_at, w.not_before > statement_timestamp() as wake_later,
       r.id as run_id, r.state as run_state,
       c.visibility <> 'open' and not exists (
           select from mainspring.members n
            where n.tenant_id = e.tenant_id and n.channel_id = c.id and n.account_id = e.recipient_id) as unseen,
       (select count(*) from mainspring.runners l
         where l.tenant_id = e.tenant_id and r.agent_id = any(l.agents) and not l.draining
           and l.last_seen_at > statement_timestamp() - make_interval(secs => $3::double precision)) as runners_seen
  from mainspring.effects e
  join mainspring.accounts a on a.tenant_id = e.tenant_id and a.id = e.recipient_id
  join mainspring.agents g on g.tenant_id = e.tenant_id and g.id = e.recipient_id
  left join mainspring.topics p on p.tenant_id = e.tenant_id and p.id = e.topic_id
  left join mainspring.channels c on c.tenant_id = e.tenant_id and c.id = p.channel_id
  left join lateral (
      select s.id, s.state, s.turn
        from mainspring.sessions s
       where s.tenant_id = e.tenant_id and s.agent_id = e.recipient_id and s.lease_until is not null
         and (s.topic_id = e.topic_id or s.topic_id is null)
       order by s.topic_id is null
       limit 1) s on true
  left join lateral (
      select m.channel_seq as message_seq, b.attempts, b.not_before,
             (select t.error from mainspring.effect_attempts t
               where t.tenant_id = b.tenant_id and t.effect_id = b.id order by t.n desc limit 1) as said
        from mainspring.effects b
        join mainspring.messages m on m.tenant_id = b.tenant_id and m.id = (b.payload ->> 'message_id')::uuid
       where e.state = 'pending' and b.tenant_id = e.tenant_id and b.recipient_id = e.recipient_id and b.topic_id = e.topic_id
         and b.family = 'offered' and b.state = 'pending' and b.kind = e.kind and b.attempts > 0
         and b.not_before > statement_timestamp() and b.not_before < 'infinity'
         and (b.event_seq, b.id) < (e.event_seq, e.id)
       order by b.event_seq, b.id
       limit 1) z on true
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
