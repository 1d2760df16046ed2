-- name: insert_board
-- One board a key: a second one inserts nothing, and the caller is told.
insert into mainspring.boards (tenant_id, id, key, name, states, reflect)
values ($1, $2, $3, $4, $5, $6)
on conflict (tenant_id, key) do nothing
returning id;

-- name: get_board
-- By id or by key; the other one is null.
select id, key, name, states, reflect, version
from mainspring.boards
where tenant_id = $1 and (id = $2::uuid or key = $3::text);

-- name: list_boards
select id, key, name, states, reflect, version
from mainspring.boards
where tenant_id = $1 and ($2::uuid is null or id > $2)
order by id
limit $3;

-- name: take_card_number
-- Locks the board's row until commit, so that numbers have no hole and no double. No key column changes: cards that
-- refer to the board are not held up.
update mainspring.boards
set next_number = next_number + 1
where tenant_id = $1 and id = $2
returning next_number - 1;

-- name: reflect_maps
-- All boards that a batch of events speaks of, of whichever tenants, in one statement.
select b.tenant_id, b.id, b.reflect
from unnest($1::uuid[], $2::uuid[]) as asked (tenant_id, board_id)
join mainspring.boards b on b.tenant_id = asked.tenant_id and b.id = asked.board_id;

-- name: find_account
select id, handle
from mainspring.accounts
where tenant_id = $1 and handle = $2;

-- name: find_agent
select a.id, a.handle
from mainspring.accounts a
join mainspring.agents g on g.tenant_id = a.tenant_id and g.id = a.id
where a.tenant_id = $1 and a.handle = $2;
