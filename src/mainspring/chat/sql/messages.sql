-- name: messages_by_id
select m.id, m.channel_id, c.name as channel_name, c.visibility, m.topic_id, t.name as topic_name, t.card_id, m.channel_seq, m.author_id,
       a.kind as author_kind, a.handle as author_handle, m.run_id, m.session_id, m.turn, m.blocks, m.mentions, m.broadcast,
       m.revision, m.request_id, m.sent, m.cause_seq, m.via, m.depth, m.trust, m.hops, m.settled_by, m.settled_at, m.posted_at,
       m.edited_at
  from mainspring.messages m
  join mainspring.channels c on c.tenant_id = m.tenant_id and c.id = m.channel_id
  join mainspring.topics t on t.tenant_id = m.tenant_id and t.id = m.topic_id
  join mainspring.accounts a on a.tenant_id = m.tenant_id and a.id = m.author_id
 where m.tenant_id = $1 and m.id = any($2::uuid[])
 order by m.channel_id, m.channel_seq;

-- name: messages_of_channel
-- The newest first, before a seq.
select m.id from mainspring.messages m
 where m.tenant_id = $1 and m.channel_id = $2 and ($3::bigint is null or m.channel_seq < $3)
 order by m.channel_seq desc
 limit $4;

-- name: messages_after
-- Those behind a seq, the oldest first.
select m.id from mainspring.messages m
 where m.tenant_id = $1 and m.channel_id = $2 and m.channel_seq > $3
 order by m.channel_seq
 limit $4;

-- name: messages_of_topic
select m.id from mainspring.messages m
 where m.tenant_id = $1 and m.topic_id = $2 and ($3::bigint is null or m.channel_seq < $3)
 order by m.channel_seq desc
 limit $4;

-- name: messages_of_topic_after
select m.id from mainspring.messages m
 where m.tenant_id = $1 and m.topic_id = $2 and m.channel_seq > $3
 order by m.channel_seq
 limit $4;

-- name: message_of_request
select id, channel_id, sent from mainspring.messages where tenant_id = $1 and author_id = $2 and request_id = $3;

-- name: add_message
-- The next seq of its channel, whose row the caller has locked. A second post of the same name inserts nothing.
with given as (
    select last_seq + 1 as seq from mainspring.channels where tenant_id = $1 and id = $3
), added as (
    insert into mainspring.messages
        (tenant_id, id, channel_id, topic_id, channel_seq, author_id, run_id, session_id, turn, blocks, mentions, broadcast,
         request_id, sent, cause_seq, via, depth, trust, hops, settled_at, settled_by)
    select $1, $2, $3, $4, given.seq, $5, $6, $7, $8, $9, $10::uuid[], $11, $12, $13, $14, $15::uuid[], $16, $17, $18,
           case when $19::text is not null then clock_timestamp() end, $19
      from given
    on conflict (tenant_id, author_id, request_id) do nothing
    returning channel_seq
), counted as (
    update mainspring.channels set last_seq = added.channel_seq from added where tenant_id = $1 and id = $3
)
update mainspring.topics
   set last_seq = added.channel_seq, hops = $18
  from added
 where tenant_id = $1 and id = $4
returning added.channel_seq;

-- name: add_words
insert into mainspring.message_words (tenant_id, word, message_id)
select $1, w, $2 from unnest($3::text[]) as w
order by w
on conflict do nothing;

-- name: drop_words
delete from mainspring.message_words where tenant_id = $1 and message_id = $2 and not (word = any($3::text[]));

-- name: lock_message
select id from mainspring.messages where tenant_id = $1 and id = $2 for no key update;

-- name: write_edit
update mainspring.messages
   set blocks = $4, mentions = $5::uuid[], broadcast = $6, revision = revision + 1, edited_at = clock_timestamp()
 where tenant_id = $1 and id = $2 and revision = $3
returning revision;

-- name: settle_message
update mainspring.messages
   set settled_at = clock_timestamp(), settled_by = $3
 where tenant_id = $1 and id = $2 and settled_at is null;

-- name: settle_turns
-- Of the session, whose row the caller has locked: what was written through this turn, or in any.
with held as materialized (
    select id from mainspring.messages
     where tenant_id = $1 and session_id = $2 and ($3::bigint is null or turn <= $3) and settled_at is null
     order by id
       for no key update
)
update mainspring.messages m
   set settled_at = clock_timestamp(), settled_by = $4
  from held
 where m.tenant_id = $1 and m.id = held.id
returning m.id;

-- name: past_their_session
-- I-13: tenants of messages that are held though their session is past them. Every edge settles them itself; this is its net.
select distinct m.tenant_id
  from mainspring.messages m
  join mainspring.sessions s on s.tenant_id = m.tenant_id and s.id = m.session_id
 where m.settled_at is null and (m.turn <= s.settled_turn or s.lease_until is null) and not (m.tenant_id = any($2::uuid[]))
 limit $1;

-- name: lock_past
-- The sessions that are past messages which are held for them.
select s.id
  from mainspring.sessions s
 where s.tenant_id = $1
   and s.id in (select m.session_id
                  from mainspring.messages m
                  join mainspring.sessions o on o.tenant_id = m.tenant_id and o.id = m.session_id
                 where m.tenant_id = $1 and m.settled_at is null and (m.turn <= o.settled_turn or o.lease_until is null))
 order by s.id
 limit $2
   for no key update of s skip locked;

-- name: concerned
-- Of these channels, whom a message may be owed to: who subscribes, who is mentioned and sees the channel, and all of a channel that is
-- called as a whole.
select g.message_id, a.id as account_id, a.kind, a.handle, coalesce(m.subscribed, false) as subscribed
  from unnest($2::uuid[], $3::uuid[], $4::boolean[]) as g (message_id, channel_id, everybody)
  join mainspring.channels c on c.tenant_id = $1 and c.id = g.channel_id
  cross join lateral (
      select m.account_id, m.subscribed
        from mainspring.members m
       where m.tenant_id = $1 and m.channel_id = g.channel_id
         and (g.everybody or m.subscribed
              or m.account_id = any(array(select unnest(x.mentions) from mainspring.messages x
                                           where x.tenant_id = $1 and x.id = g.message_id)))
      union all
      select u.account_id, false
        from (select unnest(x.mentions) as account_id from mainspring.messages x where x.tenant_id = $1 and x.id = g.message_id) u
       where c.visibility = 'open'
         and not exists (select from mainspring.members n
                          where n.tenant_id = $1 and n.channel_id = g.channel_id and n.account_id = u.account_id)
  ) m
  join mainspring.accounts a on a.tenant_id = $1 and a.id = m.account_id;

-- name: last_settling
-- To whom the last revision that settled was owed.
select e.data -> 'recipients' as recipients
  from mainspring.events e
 where e.tenant_id = $1 and e.subject = $2 and e.kind = 'message.settled'
 order by e.seq desc
 limit 1;

-- name: add_inbox_items
-- What settles again is a new item, and unread: whoever marks the one before as read has read the message as it was before.
insert into mainspring.inbox_items (tenant_id, account_id, id, message_id)
select $1, g.account_id, g.id, $4
  from unnest($2::uuid[], $3::uuid[]) as g (account_id, id)
 order by g.account_id
on conflict (tenant_id, account_id, message_id)
do update set id = excluded.id, created_at = excluded.created_at, read_at = null;

-- name: inbox_items
-- Those in channels that the account sees: what it does not see takes no place on a page.
select i.id, i.message_id, i.created_at, i.read_at
  from mainspring.inbox_items i
  join mainspring.messages m on m.tenant_id = i.tenant_id and m.id = i.message_id
  join mainspring.channels c on c.tenant_id = m.tenant_id and c.id = m.channel_id
 where (c.visibility = 'open'
        or exists (select from mainspring.members n
                    where n.tenant_id = c.tenant_id and n.channel_id = c.id and n.account_id = $2))
   and i.tenant_id = $1 and i.account_id = $2 and ($3::boolean or i.read_at is null)
   and ($4::uuid is null or i.id < $4)
 order by i.id desc
 limit $5;

-- name: read_inbox_items
update mainspring.inbox_items
   set read_at = coalesce(read_at, clock_timestamp())
 where tenant_id = $1 and account_id = $2 and id = any($3::uuid[])
returning id;

-- name: release_held
-- A person has spoken in the topic: what waited for that is due.
update mainspring.effects
   set not_before = clock_timestamp()
 where tenant_id = $1 and topic_id = $2 and family = 'offered' and state = 'pending' and not_before = 'infinity';

-- name: release_spoken
-- Of whichever tenant: held for a person to speak, and one has. $1: how many messages of agents, one after the other, hold what follows.
update mainspring.effects e
   set not_before = clock_timestamp()
  from mainspring.topics t
 where e.state = 'pending' and e.not_before = 'infinity' and e.family = 'offered'
   and t.tenant_id = e.tenant_id and t.id = e.topic_id and t.hops <= $1;

-- name: search
-- Messages with all of these words, the newest first, in channels that the account sees.
select m.id
  from mainspring.message_words w
  join mainspring.messages m on m.tenant_id = w.tenant_id and m.id = w.message_id
  join mainspring.channels c on c.tenant_id = m.tenant_id and c.id = m.channel_id
 where w.tenant_id = $1 and w.word = $2
   and not exists (select from unnest($3::text[]) as other (word)
                    where not exists (select from mainspring.message_words o
                                       where o.tenant_id = $1 and o.word = other.word and o.message_id = w.message_id))
   and (c.visibility = 'open'
        or exists (select from mainspring.members n
                    where n.tenant_id = $1 and n.channel_id = c.id and n.account_id = $4))
   and ($5::uuid is null or m.channel_id = $5)
   and ($6::uuid is null or w.message_id < $6)
 order by w.message_id desc
 limit $7;

-- name: rarest_word
-- Which of these words the fewest messages have, looked at so far and no further.
select w.word
  from unnest($2::text[]) as w (word)
 order by (select count(*) from (select from mainspring.message_words o where o.tenant_id = $1 and o.word = w.word limit 1000) n)
 limit 1;

-- name: settlings
-- Where a message settled last, which revision of it, to whom that was owed; and how far the log has been drained. What a message has
-- for events are few, what is of their kind may be most of the log: `offset 0` has them found by subject.
select e.seq, (e.data -> 'message' ->> 'revision')::integer as revision, e.data -> 'recipients' as recipients,
       coalesce((select c.position from mainspring.cursors c where c.tenant_id = $1 and c.name = 'effects'), 0) as position
  from (select v.seq, v.kind, v.data from mainspring.events v where v.tenant_id = $1 and v.subject = $2 offset 0) e
 where e.kind = 'message.settled'
 order by e.seq desc
 limit 1;

-- name: accounts_by_id
select id, kind, handle from mainspring.accounts where tenant_id = $1 and id = any($2::uuid[]);

-- name: receipts_of_people
select i.account_id, i.read_at from mainspring.inbox_items i
 where i.tenant_id = $1 and i.message_id = $2 and i.account_id = any($3::uuid[]);

-- name: not_owed
-- Agents of a message's channel that it is not owed to ($3 are those that it is), and who is mentioned in it and may not see it.
select a.id as account_id, a.handle, a.kind, m.joined_at, coalesce(m.subscribed, false) as subscribed
  from mainspring.messages w
  join mainspring.members m on m.tenant_id = w.tenant_id and m.channel_id = w.channel_id
  join mainspring.accounts a on a.tenant_id = m.tenant_id and a.id = m.account_id
 where w.tenant_id = $1 and w.id = $2 and a.kind = 'agent' and a.id <> w.author_id and not (a.id = any($3::uuid[]))
union all
select a.id, a.handle, a.kind, null, false
  from mainspring.messages w
  cross join lateral unnest(w.mentions) as u (account_id)
  join mainspring.accounts a on a.tenant_id = w.tenant_id and a.id = u.account_id
 where w.tenant_id = $1 and w.id = $2 and a.id <> w.author_id and not (a.id = any($3::uuid[]))
   and not exists (select from mainspring.members n
                    where n.tenant_id = w.tenant_id and n.channel_id = w.channel_id and n.account_id = a.id)
 order by joined_at nulls first, handle
 limit $4;
