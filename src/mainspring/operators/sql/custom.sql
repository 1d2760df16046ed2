-- name: take_event_key
-- Whoever sends the same key at once waits here for the first, and then finds what he has written.
insert into mainspring.event_keys (tenant_id, key, request) values ($1, $2, $3) on conflict do nothing;

-- name: event_of_key
select request, seq from mainspring.event_keys where tenant_id = $1 and key = $2;

-- name: stamp_event_key
update mainspring.event_keys set seq = $3 where tenant_id = $1 and key = $2;
