-- name: note_deed
insert into mainspring.audit (tenant_id, id, account_id, handle, token_id, verb, subject, asked, request_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: deeds
-- The latest first, along the primary key.
select a.id, a.at, a.account_id, a.handle, a.token_id, a.verb, a.subject, a.asked, a.request_id
  from mainspring.audit a
 where a.tenant_id = $1 and a.id < $2
   and ($4::text is null or a.verb = $4)
   and ($5::text is null or split_part(a.verb, '.', 1) = $5)
   and ($6::text is null or a.handle = $6)
 order by a.id desc
 limit $3;
