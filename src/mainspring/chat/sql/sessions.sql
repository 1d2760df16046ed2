-- name: lock_agent
select id from mainspring.agents where tenant_id = $1 and id = $2 for no key update;

-- name: sessions
select s.id, s.agent_id, a.handle as agent_handle, s.run_id, s.topic_id, s.state, s.turn, s.settled_turn, s.claim_id, s.lease_until,
       s.acked_seq, s.acked_via, s.acked_depth, s.acked_trust, s.acked_turn, s.started_at, s.seen_at, s.ended_at, s.reason
  from mainspring.sessions s
  join mainspring.accounts a on a.tenant_id = s.tenant_id and a.id = s.agent_id
 where s.tenant_id = $1 and s.id = any($2::uuid[])
 order by s.id;

-- name: list_sessions
-- The newest first; $3: the live ones alone.
select s.id
  from mainspring.sessions s
 where s.tenant_id = $1 and ($2::uuid is null or s.agent_id = $2) and (not $3::boolean or s.lease_until is not null)
   and ($4::uuid is null or s.id < $4)
 order by s.id desc
 limit $5;

-- name: lock_session
select id from mainspring.sessions where tenant_id = $1 and id = $2 for no key update;

-- name: live_session
-- Those that stand in the way of another: of the same run, and, unless that is to read its card's topic ($4), of the agent's inbox.
select s.id, s.seen_at > statement_timestamp() - make_interval(secs => $5::double precision) as fresh,
       extract(epoch from clock_timestamp())::double precision as moment
  from mainspring.sessions s
 where s.tenant_id = $1 and s.agent_id = $2 and s.lease_until is not null
   and (s.run_id = $3 or (not $4::boolean and s.topic_id is null))
 order by s.id
   for no key update;

-- name: add_session
insert into mainspring.sessions (tenant_id, id, agent_id, run_id, topic_id, state, claim_id, lease_until)
values ($1, $2, $3, $4, $5, 'ready', $6, clock_timestamp() + make_interval(secs => $7::double precision));

-- name: renew_session
-- A turn that begins is the session's turn from now on.
update mainspring.sessions
   set lease_until = clock_timestamp() + make_interval(secs => $3::double precision),
       seen_at = clock_timestamp(),
       turn = greatest(turn, coalesce($4::bigint, turn)),
       state = case when greatest(turn, coalesce($4::bigint, turn)) > settled_turn then 'working' else 'ready' end
 where tenant_id = $1 and id = $2 and lease_until is not null;

-- name: follow_turn
-- Its agent is heard to speak in a turn that was not told of: that is its turn from now on.
update mainspring.sessions
   set turn = $3, state = 'working'
 where tenant_id = $1 and id = $2 and lease_until is not null and turn < $3;

-- name: settle_session
-- Through this turn, and no further back than it had come.
update mainspring.sessions
   set turn = greatest(turn, $3), settled_turn = greatest(settled_turn, $3),
       state = case when greatest(turn, $3) > greatest(settled_turn, $3) then 'working' else 'ready' end,
       lease_until = clock_timestamp() + make_interval(secs => $4::double precision), seen_at = clock_timestamp()
 where tenant_id = $1 and id = $2 and lease_until is not null;

-- name: end_session
update mainspring.sessions
   set state = $3, lease_until = null, ended_at = clock_timestamp(), reason = $4, settled_turn = turn
 where tenant_id = $1 and id = $2 and lease_until is not null;

-- name: note_acked
-- What is written from here on in this turn descends from it.
update mainspring.sessions
   set acked_seq = $3, acked_via = $4::uuid[], acked_depth = $5, acked_trust = $6, acked_turn = turn, acked_at = clock_timestamp()
 where tenant_id = $1 and id = $2;

-- name: expired_sessions
-- Tenants that have one whose lease has run out.
select distinct tenant_id from mainspring.sessions where lease_until < statement_timestamp() and not (tenant_id = any($2::uuid[]))
 limit $1;

-- name: lock_expired
select id from mainspring.sessions
 where tenant_id = $1 and lease_until < statement_timestamp()
 order by id
 limit $2
   for no key update skip locked;

-- name: sessions_of_ended_runs
select distinct s.tenant_id
  from mainspring.sessions s
  join mainspring.runs r on r.tenant_id = s.tenant_id and r.id = s.run_id
 where s.lease_until is not null and s.run_id is not null and r.state not in ('claimed', 'running')
   and not (s.tenant_id = any($2::uuid[]))
 limit $1;

-- name: lock_of_ended_runs
select s.id
  from mainspring.sessions s
  join mainspring.runs r on r.tenant_id = s.tenant_id and r.id = s.run_id
 where s.tenant_id = $1 and s.lease_until is not null and r.state not in ('claimed', 'running')
 order by s.id
 limit $2
   for no key update of s skip locked;

-- name: agents_named
select a.id, n.handle
  from mainspring.agents a
  join mainspring.accounts n on n.tenant_id = a.tenant_id and n.id = a.id
 where a.tenant_id = $1 and a.id = any($2::uuid[]);

-- name: agent_of_session
select n.id, n.handle
  from mainspring.sessions s
  join mainspring.accounts n on n.tenant_id = s.tenant_id and n.id = s.agent_id
 where s.tenant_id = $1 and s.id = $2;

-- name: card_of_run
select card_id from mainspring.runs where tenant_id = $1 and id = $2;

-- name: due_nets
-- One question a tick for all nets of this room: is there anything that one of them would repair?
select extract(epoch from clock_timestamp())::double precision as moment,
       exists (select from mainspring.sessions where lease_until < statement_timestamp()) as lost,
       exists (select from mainspring.sessions s
                 join mainspring.runs r on r.tenant_id = s.tenant_id and r.id = s.run_id
                where s.lease_until is not null and s.run_id is not null and r.state not in ('claimed', 'running')) as over,
       exists (select from mainspring.messages m
                 join mainspring.sessions s on s.tenant_id = m.tenant_id and s.id = m.session_id
                where m.settled_at is null and (m.turn <= s.settled_turn or s.lease_until is null)) as held,
       exists (select from mainspring.effects e
                 join mainspring.topics t on t.tenant_id = e.tenant_id and t.id = e.topic_id
                where e.state = 'pending' and e.not_before = 'infinity' and e.family = 'offered' and t.hops <= $1) as spoken,
       exists (select from (select a.tenant_id, a.id
                              from mainspring.agents a
                             where a.wake and not a.paused
                               and not exists (select from mainspring.sessions s
                                                where s.tenant_id = a.tenant_id and s.agent_id = a.id and s.lease_until is not null
                                                  and s.topic_id is null)
                            offset 0) i
                where exists (select from unnest(array['steer', 'deliver']) as k (kind)
                               cross join lateral mainspring.lines(i.tenant_id, i.id, k.kind, null) l
                               where l.due)) as unread;

-- name: present
-- The agents of a channel, and the session that each reads in, if any.
select a.handle, coalesce(s.state, 'stopped') as state
  from mainspring.members m
  join mainspring.accounts a on a.tenant_id = m.tenant_id and a.id = m.account_id and a.kind = 'agent'
  left join mainspring.sessions s
    on s.tenant_id = m.tenant_id and s.agent_id = m.account_id and s.lease_until is not null and s.topic_id is null
 where m.tenant_id = $1 and m.channel_id = $2
 order by a.handle
 limit 1000;

-- name: channels_of
select channel_id from mainspring.members where tenant_id = $1 and account_id = $2;
