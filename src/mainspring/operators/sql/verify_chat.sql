-- The checks of channels, messages, sessions and what is delivered: asked and answered as those in verify.sql.

-- name: messages_are_as_told
-- What was posted is told, and what has settled: of the last revision that did, the event says to whom it is owed. People have it in their
-- inboxes; that agents' rows stand is I-1, whose judge reads the same event.
with settled as (
    select distinct on (e.subject) e.subject, e.seq, (e.data -> 'message' ->> 'revision')::integer as revision, e.data -> 'recipients' as owed
      from mainspring.events e
     where e.tenant_id = $1 and e.kind = 'message.settled'
     order by e.subject, e.seq desc
), bad as (
    select format('message %s was never posted: no event says so', m.id) as what
      from mainspring.messages m
     where m.tenant_id = $1
       and not exists (select from mainspring.events e where e.tenant_id = m.tenant_id and e.subject = m.id::text and e.kind = 'message.posted')
       and not exists (select from mainspring.events s where s.tenant_id = $1 and s.kind = 'log.skipped')
    union all
    select format('message %s has settled, and no event says to whom it is owed', m.id)
      from mainspring.messages m
     where m.tenant_id = $1 and m.settled_at is not null
       and not exists (select from settled s where s.subject = m.id::text)
       and not exists (select from mainspring.events s where s.tenant_id = $1 and s.kind = 'log.skipped')
    union all
    select format('message %s is at revision %s, and settled at revision %s', m.id, m.revision, s.revision)
      from settled s
      join mainspring.messages m on m.tenant_id = $1 and m.id::text = s.subject
     where s.revision > m.revision
    union all
    select format('event %s says that message %s is owed to %s, whose inbox it is not in', s.seq, s.subject, p.account)
      from settled s
     cross join lateral jsonb_array_elements_text(s.owed -> 'people') as p (account)
     where not exists (select from mainspring.inbox_items i
                        where i.tenant_id = $1 and i.account_id::text = p.account and i.message_id::text = s.subject)
)
select (select count(*) from mainspring.messages where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: nobody_is_owed_what_is_held
with bad as (
    select format('message %s is held, and its session %s is past its turn %s', m.id, s.id, m.turn) as what
      from mainspring.messages m
      join mainspring.sessions s on s.tenant_id = m.tenant_id and s.id = m.session_id
     where m.tenant_id = $1 and m.settled_at is null and (m.turn <= s.settled_turn or s.lease_until is null)
    union all
    select format('message %s is held, and %s', m.id, case when m.session_id is null then 'by no session' else 'by one that is not there' end)
      from mainspring.messages m
     where m.tenant_id = $1 and m.settled_at is null
       and not exists (select from mainspring.sessions s where s.tenant_id = m.tenant_id and s.id = m.session_id)
    union all
    select format('message %s is held, and event %s says that it has settled', m.id, e.seq)
      from mainspring.messages m
      join mainspring.events e on e.tenant_id = m.tenant_id and e.subject = m.id::text and e.kind = 'message.settled'
     where m.tenant_id = $1 and m.settled_at is null
    union all
    select format('message %s is held, and delivery %s of it is %s', m.id, e.id, e.state)
      from mainspring.messages m
      join mainspring.effects e on e.tenant_id = m.tenant_id and e.family = 'offered' and e.payload ->> 'message_id' = m.id::text
     where m.tenant_id = $1 and m.settled_at is null
)
select (select count(*) from mainspring.messages where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: deliveries_are_in_shape
-- A delivery is of a message that is there, in that message's topic, to whom its key says; one that is offered is held by a live session of
-- its recipient that may take it, for as long as that lives. $2: how many sessions may end badly over one.
with offered as (
    select e.*, split_part(e.key, ':', 1) as keyed_message, split_part(e.key, '>', 2) as keyed_recipient
      from mainspring.effects e
     where e.tenant_id = $1 and e.family = 'offered'
), bad as (
    select format('delivery %s (%s) is of message %s, which is not there', o.id, o.key, o.payload ->> 'message_id') as what
      from offered o
     where not exists (select from mainspring.messages m where m.tenant_id = $1 and m.id::text = o.payload ->> 'message_id')
    union all
    select format('delivery %s (%s) is of revision %s of message %s in topic %s, which is at revision %s, in topic %s', o.id, o.key,
                  o.payload ->> 'revision', m.id, o.topic_id, m.revision, m.topic_id)
      from offered o
      join mainspring.messages m on m.tenant_id = $1 and m.id::text = o.payload ->> 'message_id'
     where m.topic_id is distinct from o.topic_id or (o.payload ->> 'revision')::integer > m.revision
    union all
    select format('delivery %s (%s) is to %s', o.id, o.key, coalesce(o.recipient_id::text, 'nobody'))
      from offered o
     where o.recipient_id::text is distinct from o.keyed_recipient or o.payload ->> 'message_id' is distinct from o.keyed_message
    union all
    select format('delivery %s (%s) is offered to %s, which is no live session of its recipient', o.id, o.key, coalesce(o.worker, 'nobody'))
      from offered o
     where o.state = 'claimed'
       and not exists (select from mainspring.sessions s
                        where s.tenant_id = $1 and s.id::text = o.worker and s.agent_id = o.recipient_id and s.lease_until is not null
                          and (s.topic_id is null or s.topic_id = o.topic_id))
    union all
    select format('delivery %s (%s) is offered until %s, and not for as long as its session lives', o.id, o.key, o.lease_until)
      from offered o
     where o.state = 'claimed' and o.lease_until < 'infinity'
    union all
    select format('delivery %s (%s) has ended %s sessions of %s, and is %s', o.id, o.key, o.crashes, $2::integer, o.state)
      from offered o
     where (o.state in ('pending', 'claimed') and o.crashes >= $2::integer)
        or (o.state = 'dead' and o.outcome = 'worker_crashed' and o.crashes < $2::integer)
)
select (select count(*) from offered) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: channels_are_whole
-- The seqs of a channel have no hole, and its row knows the last; a topic is of the channel of all that was said in it.
with counted as (
    select c.id, c.last_seq, count(m.id) as n, coalesce(max(m.channel_seq), 0) as last
      from mainspring.channels c
      left join mainspring.messages m on m.tenant_id = c.tenant_id and m.channel_id = c.id
     where c.tenant_id = $1
     group by c.id, c.last_seq
), bad as (
    select format('channel %s has %s messages, its last is %s, and it says %s', id, n, last, last_seq) as what
      from counted
     where n <> last or last <> last_seq
    union all
    select format('message %s is in channel %s, and its topic %s in channel %s', m.id, m.channel_id, t.id, t.channel_id)
      from mainspring.messages m
      join mainspring.topics t on t.tenant_id = m.tenant_id and t.id = m.topic_id
     where m.tenant_id = $1 and t.channel_id <> m.channel_id
    union all
    select format('topic %s was last spoken in at %s, and says %s', t.id, l.last, t.last_seq)
      from mainspring.topics t
     cross join lateral (select coalesce(max(m.channel_seq), 0) as last from mainspring.messages m
                          where m.tenant_id = t.tenant_id and m.topic_id = t.id) l
     where t.tenant_id = $1 and t.last_seq <> l.last
)
select (select count(*) from mainspring.channels where tenant_id = $1) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;

-- name: sessions_are_as_told
with told as (
    select s.id, s.state, s.lease_until, s.turn, s.settled_turn, e.kind, e.seq, e.data -> 'session' ->> 'state' as said
      from mainspring.sessions s
      left join lateral (
          select v.kind, v.seq, v.data
            from mainspring.events v
           where v.tenant_id = s.tenant_id and v.subject = s.id::text and v.kind in ('session.started', 'session.ended')
           order by v.seq desc
           limit 1) e on true
     where s.tenant_id = $1
), bad as (
    select format('session %s is %s, and its last event is %s', id, state, coalesce(kind || ' at ' || seq, 'none')) as what
      from told
     where kind is distinct from case when lease_until is null then 'session.ended' else 'session.started' end
        or (lease_until is null and said <> state)
    union all
    select format('session %s is ready, and its turn %s has not ended', id, turn) from told where state = 'ready' and turn > settled_turn
    union all
    select format('session %s has ended, and its turn %s has not', id, turn) from told where lease_until is null and turn > settled_turn
    union all
    select format('message %s is of session %s, which is of another agent', m.id, s.id)
      from mainspring.messages m
      join mainspring.sessions s on s.tenant_id = m.tenant_id and s.id = m.session_id
     where m.tenant_id = $1 and m.author_id <> s.agent_id
)
select (select count(*) from told) as examined,
       (select count(*) from bad) as count, array(select what from bad order by what limit 20) as violations;
