-- name: read_cards
-- The one place that says what a card consists of. Never locks: a statement that waited for a lock would go on with the
-- labels as they were before the wait.
select c.id, c.number, c.title, c.body, c.state, c.state_version, c.agent_id, c.assignee_id, c.priority, c.fields,
       c.version, c.eligible_version, c.eligible_seq, c.dispatched_version, c.created_at, c.updated_at,
       b.id as board_id, b.key as board_key, b.name as board_name, b.states as board_states,
       b.reflect as board_reflect, b.version as board_version,
       pin.handle as agent_handle, assignee.handle as assignee_handle,
       array(select l.label from mainspring.card_labels l where l.tenant_id = c.tenant_id and l.card_id = c.id) as labels
from mainspring.cards c
join mainspring.boards b on b.tenant_id = c.tenant_id and b.id = c.board_id
left join mainspring.accounts pin on pin.tenant_id = c.tenant_id and pin.id = c.agent_id
left join mainspring.accounts assignee on assignee.tenant_id = c.tenant_id and assignee.id = c.assignee_id
where c.tenant_id = $1 and c.id = any($2::uuid[]) and c.deleted_at is null
order by c.id;

-- name: lock_card
-- Read the card after this one, in a second statement, which then sees what the one we waited for has written.
select c.id
from mainspring.cards c
where c.tenant_id = $1 and c.id = $2 and c.deleted_at is null
for no key update;

-- name: find_card_by_key
select c.id
from mainspring.cards c
join mainspring.boards b on b.tenant_id = c.tenant_id and b.id = c.board_id
where c.tenant_id = $1 and b.key = $2 and c.number = $3 and c.deleted_at is null;

-- name: find_cards
select c.id
from mainspring.cards c
where c.tenant_id = $1 and c.deleted_at is null
  and ($2::uuid is null or c.id > $2)
  and ($3::text is null or c.state = $3)
  and ($4::uuid is null or c.assignee_id = $4)
  and ($5::uuid is null or c.agent_id = $5)
order by c.id
limit $6;

-- name: find_cards_on_board
-- A statement of its own, so that the board's index serves it whatever plan is cached.
select c.id
from mainspring.cards c
where c.tenant_id = $1 and c.deleted_at is null and c.board_id = $7
  and ($2::uuid is null or c.id > $2)
  and ($3::text is null or c.state = $3)
  and ($4::uuid is null or c.assignee_id = $4)
  and ($5::uuid is null or c.agent_id = $5)
order by c.id
limit $6;

-- name: find_labeled_cards
-- Driven by the first label, in the order of its index; the card must have the others too, which are counted, since a `not exists` is answered from
-- all labels of the tenant. `offset 0` keeps it so: to a plan that is made for any arguments so many "or null" look as if hardly a card came
-- through, and it would read them all.
select l.card_id as id
from (
    select o.card_id
    from mainspring.card_labels o
    where o.tenant_id = $1 and o.label = ($8::text[])[1]
      and o.card_id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
    order by o.card_id
    offset 0
) l
cross join lateral (
    select c.id
    from mainspring.cards c
    where c.tenant_id = $1 and c.id = l.card_id and c.deleted_at is null
      and ($3::text is null or c.state = $3)
      and ($4::uuid is null or c.assignee_id = $4)
      and ($5::uuid is null or c.agent_id = $5)
      and ($7::uuid is null or c.board_id = $7)
    offset 0
) c
where (select count(*) from mainspring.card_labels other
       where other.tenant_id = $1 and other.card_id = l.card_id and other.label = any($8::text[]))
    = (select count(distinct wanted.label) from unnest($8::text[]) as wanted (label))
order by l.card_id
limit $6;

-- name: insert_card
insert into mainspring.cards
    (tenant_id, id, board_id, number, title, body, state, agent_id, assignee_id, priority, fields, eligible_version, created_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
returning created_at, updated_at;

-- Every write below is made under the card's lock, and says which version it was decided on: no row means a defect of ours.

-- name: write_move
update mainspring.cards
set state = $4, state_version = $5, version = $3 + 1, updated_at = clock_timestamp(),
    eligible_version = $6, eligible_seq = $7, dispatched_version = $8
where tenant_id = $1 and id = $2 and version = $3
returning updated_at;

-- name: write_assignment
update mainspring.cards
set agent_id = $4, assignee_id = $5, version = $3 + 1, updated_at = clock_timestamp(),
    eligible_version = $6, eligible_seq = $7, dispatched_version = $8
where tenant_id = $1 and id = $2 and version = $3
returning updated_at;

-- name: write_edit
update mainspring.cards
set title = $4, body = $5, priority = $6, fields = $7, version = $3 + 1, updated_at = clock_timestamp()
where tenant_id = $1 and id = $2 and version = $3
returning updated_at;

-- name: write_version
-- The card's labels, which are rows of their own, were changed.
update mainspring.cards
set version = $3 + 1, updated_at = clock_timestamp()
where tenant_id = $1 and id = $2 and version = $3
returning updated_at;

-- name: write_deletion
update mainspring.cards
set deleted_at = clock_timestamp(), version = $3 + 1, updated_at = clock_timestamp(),
    eligible_version = null, eligible_seq = null, dispatched_version = null
where tenant_id = $1 and id = $2 and version = $3
returning updated_at;

-- name: stamp_eligible
-- The event that made the card eligible now has its seq: a sweep takes depth and trust from that event.
update mainspring.cards
set eligible_seq = $4
where tenant_id = $1 and id = $2 and eligible_version = $3;

-- name: set_dispatched
-- Only for the eligibility that was launched; a later one is owed a launch of its own.
update mainspring.cards
set dispatched_version = $3
where tenant_id = $1 and id = $2 and eligible_version = $3;

-- name: add_labels
insert into mainspring.card_labels (tenant_id, card_id, label)
select $1, $2, wanted.label
from unnest($3::text[]) as wanted (label)
order by wanted.label;

-- name: remove_labels
delete from mainspring.card_labels
where tenant_id = $1 and card_id = $2 and label = any($3::text[]);

-- name: last_pinned_by
-- The kind of the event that changed the card's pin last: made with it, assigned by hand, or promoted by a rule.
select e.kind
from mainspring.events e
where e.tenant_id = $1 and e.subject = $2
  and (e.kind in ('card.created', 'card.promoted')
       or (e.kind = 'card.assigned' and e.data -> 'changed' ? 'agent_id'))
order by e.seq desc
limit 1;

-- name: last_card_event
-- Who changed the card last, or last in the way that `kind like $3` says.
select e.seq, e.kind, e.data -> 'actor' as actor, e.occurred_at
from mainspring.events e
where e.tenant_id = $1 and e.subject = $2 and e.kind like $3
order by e.seq desc
limit 1;
