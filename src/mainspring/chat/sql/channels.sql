-- name: channels
-- Those that an account sees: the open ones, and where it is a member. $2 null: all, for the engine itself.
select c.id, c.name, c.purpose, c.visibility, c.post_policy, c.owner_id, c.board_id, c.last_seq, c.version, c.created_at,
       c.archived_at
  from mainspring.channels c
 where c.tenant_id = $1
   and ($2::uuid is null or c.visibility = 'open'
        or exists (select from mainspring.members m
                    where m.tenant_id = c.tenant_id and m.channel_id = c.id and m.account_id = $2))
   and ($3::uuid is null or c.id > $3)
   and ($4::uuid is null or c.id = $4)
   and ($5::text is null or c.name = $5)
 order by c.id
 limit $6;

-- name: visible_channels
-- Which of these channels an account sees: the one predicate, for whatever reads more than one thing.
select c.id
  from mainspring.channels c
 where c.tenant_id = $1 and c.id = any($3::uuid[])
   and (c.visibility = 'open'
        or exists (select from mainspring.members m
                    where m.tenant_id = c.tenant_id and m.channel_id = c.id and m.account_id = $2));

-- name: seen_by
-- The same predicate, asked by many at once: of these channels, or of the channels of these messages, which are open, and which of these
-- accounts are members of the others.
select g.n, c.visibility = 'open' as open,
       array(select m.account_id from mainspring.members m
              where m.tenant_id = c.tenant_id and m.channel_id = c.id and m.account_id = any($4::uuid[])) as accounts
  from unnest($1::uuid[], $2::uuid[], $3::uuid[]) with ordinality as g (tenant_id, channel_id, message_id, n)
  left join mainspring.messages w on w.tenant_id = g.tenant_id and w.id = g.message_id
  join mainspring.channels c on c.tenant_id = g.tenant_id and c.id = coalesce(g.channel_id, w.channel_id);

-- name: channel_of_board
select id from mainspring.channels where tenant_id = $1 and board_id = $2;

-- name: add_channel
insert into mainspring.channels (tenant_id, id, name, purpose, visibility, post_policy, owner_id, board_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict do nothing
returning id;

-- name: write_channel
update mainspring.channels
   set purpose = $3, visibility = $4, post_policy = $5, owner_id = $6,
       archived_at = case when $7::boolean then coalesce(archived_at, clock_timestamp()) end,
       version = version + 1
 where tenant_id = $1 and id = $2;

-- name: give_up_channel
-- Nobody sees it any more: its name is free for another. $3 makes its own one that nobody has.
update mainspring.channels
   set archived_at = coalesce(archived_at, clock_timestamp()),
       name = left(name, 47) || '-' || $3,
       version = version + 1
 where tenant_id = $1 and id = $2;

-- name: lock_channel
-- Whoever posts takes the next seq under this lock.
select id from mainspring.channels where tenant_id = $1 and id = $2 for no key update;

-- name: members
select m.account_id, a.kind, a.handle, m.subscribed
  from mainspring.members m
  join mainspring.accounts a on a.tenant_id = m.tenant_id and a.id = m.account_id
 where m.tenant_id = $1 and m.channel_id = $2
   and ($3::uuid is null or m.account_id > $3)
   and ($4::uuid is null or m.account_id = $4)
 order by m.account_id
 limit $5;

-- name: count_members
select count(*) from mainspring.members where tenant_id = $1 and channel_id = $2;

-- name: join_channel
-- True when the account was no member before; false when it was and only its subscription may have changed.
insert into mainspring.members as m (tenant_id, channel_id, account_id, subscribed)
values ($1, $2, $3, $4)
on conflict (tenant_id, channel_id, account_id) do update set subscribed = excluded.subscribed
where m.subscribed <> excluded.subscribed
returning xmax = 0 as joined;

-- name: join_by_posting
insert into mainspring.members (tenant_id, channel_id, account_id, subscribed)
values ($1, $2, $3, $4)
on conflict do nothing;

-- name: leave_channel
delete from mainspring.members where tenant_id = $1 and channel_id = $2 and account_id = $3;

-- name: accounts_by_handle
select id, kind, handle from mainspring.accounts where tenant_id = $1 and handle = any($2::text[]);

-- name: topics
select t.id, t.channel_id, t.name, t.card_id, t.hops, t.archived_at, t.last_seq
  from mainspring.topics t
 where t.tenant_id = $1 and t.channel_id = $2
   and ($3::boolean or t.archived_at is null)
   and ($4::bigint is null or (t.last_seq, t.id) < ($4, $5::uuid))
 order by t.last_seq desc, t.id desc
 limit $6;

-- name: topic
select t.id, t.channel_id, t.name, t.card_id, t.hops, t.archived_at
  from mainspring.topics t
 where t.tenant_id = $1 and t.id = $2;

-- name: topic_of_card
select t.id, t.channel_id, t.name, t.card_id, t.hops, t.archived_at
  from mainspring.topics t
 where t.tenant_id = $1 and t.card_id = $2;

-- name: make_topic
-- Posting by name makes the topic, or brings it back; case does not matter.
insert into mainspring.topics as t (tenant_id, id, channel_id, name, card_id)
values ($1, $2, $3, $4, $5)
on conflict (tenant_id, channel_id, lower(name)) do update set archived_at = null, card_id = coalesce(t.card_id, excluded.card_id)
returning t.id, t.channel_id, t.name, t.card_id, t.hops, t.archived_at;

-- name: rename_topic
update mainspring.topics set name = $3 where tenant_id = $1 and id = $2;

-- name: topic_named
select id from mainspring.topics where tenant_id = $1 and channel_id = $2 and lower(name) = lower($3);

-- name: archive_topic
update mainspring.topics
   set archived_at = case when $3::boolean then coalesce(archived_at, clock_timestamp()) end
 where tenant_id = $1 and id = $2;

-- name: bring_back_topic
update mainspring.topics set archived_at = null where tenant_id = $1 and id = $2;

-- name: pins
select p.message_id
  from mainspring.pins p
 where p.tenant_id = $1 and p.channel_id = $2
 order by p.place;

-- name: drop_pins
delete from mainspring.pins where tenant_id = $1 and channel_id = $2;

-- name: add_pins
insert into mainspring.pins (tenant_id, channel_id, place, message_id, pinned_by)
select $1, $2, g.place, g.message_id, $4
  from unnest($3::uuid[]) with ordinality as g (message_id, place)
  join mainspring.messages m on m.tenant_id = $1 and m.id = g.message_id and m.channel_id = $2;
