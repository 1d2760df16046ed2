-- name: open_message_asks
-- The questions of a message that has settled.
insert into mainspring.asks (tenant_id, id, message_id, block_id, question, options, released, state)
select $1, g.id, $2, g.block_id, g.question, array(select jsonb_array_elements_text(g.options::jsonb)), false, 'open'
  from unnest($3::uuid[], $4::text[], $5::text[], $6::text[]) as g (id, block_id, question, options)
on conflict (tenant_id, message_id, block_id) do nothing
returning id, block_id;

-- name: message_asks
select k.id, k.message_id, k.block_id, k.question, k.options, k.state, k.answer, n.handle as answered_by, k.answered_by as answered_by_id,
       k.asked_at, k.ended_at, m.channel_id, c.name as channel_name, c.visibility, t.name as topic_name, m.author_id, a.handle as author_handle,
       a.kind as author_kind
  from mainspring.asks k
  join mainspring.messages m on m.tenant_id = k.tenant_id and m.id = k.message_id
  join mainspring.channels c on c.tenant_id = m.tenant_id and c.id = m.channel_id
  join mainspring.topics t on t.tenant_id = m.tenant_id and t.id = m.topic_id
  join mainspring.accounts a on a.tenant_id = m.tenant_id and a.id = m.author_id
  left join mainspring.accounts n on n.tenant_id = k.tenant_id and n.id = k.answered_by
 where k.tenant_id = $1 and k.id = any($2::uuid[])
   and (c.visibility = 'open'
        or exists (select from mainspring.members b
                    where b.tenant_id = $1 and b.channel_id = c.id and b.account_id = $3))
 order by k.id;

-- name: list_message_asks
-- The one that waits longest first; $3: the open ones alone.
select k.id
  from mainspring.asks k
  join mainspring.messages m on m.tenant_id = k.tenant_id and m.id = k.message_id
  join mainspring.channels c on c.tenant_id = m.tenant_id and c.id = m.channel_id
 where k.tenant_id = $1 and k.id > $2 and k.message_id is not null and (not $3::boolean or k.state = 'open')
   and (c.visibility = 'open'
        or exists (select from mainspring.members b
                    where b.tenant_id = $1 and b.channel_id = c.id and b.account_id = $4))
 order by k.id
 limit $5;

-- name: answer_message_ask
update mainspring.asks
   set state = 'answered', answer = $3, answered_by = $4, ended_at = clock_timestamp()
 where tenant_id = $1 and id = $2 and state = 'open';
